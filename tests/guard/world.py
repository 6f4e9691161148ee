"""A world with everything that a training touches, and the changes that a probe may make to it."""

import ctypes
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.guard import Guard
from autofit.guard.object_state import fingerprint


class Recorder:
    """A user's own object whose state only its two methods reach: it lies in memory of C."""

    def __init__(self) -> None:
        self.count = ctypes.c_int(0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count.value = state["count"]


class Config:
    """Like the configuration object that many models carry."""

    def __init__(self) -> None:
        self.use_cache = True


class Net(nn.Module):
    """A small network with every kind of state that a `state_dict` forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.first = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.head = nn.Linear(4, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("statistics", torch.zeros(4), persistent=False)
        self.statistics: torch.Tensor
        self.expanded = torch.ones(1).expand(5)
        self.plain_tensor = torch.arange(3.0)
        self.array = np.arange(3)
        self.config = Config()
        self.calls = 0
        self.history: list[Any] = [1, (2, 3)]
        self.options: dict[str, Any] = {"dtype": torch.float32, "names": {"a", "b"}}
        self.rng = np.random.default_rng(5)
        self.norm.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.norm(self.conv(x)).mean((2, 3))
        with torch.no_grad():
            self.statistics.mul_(0.9).add_(h.mean(0))
        output: torch.Tensor = self.frozen(self.head(self.drop(self.tied(self.first(h))) + self.statistics))
        return output


class World:
    """What a user has in hand in the middle of training, in the middle of an accumulation."""

    def __init__(self) -> None:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW((p for p in self.model.parameters() if p.requires_grad), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=100)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model)
        self.generator = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.randn(32, 3, 5, 5), torch.arange(32) % 2)
        self.loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7))
        self.batches = iter(self.loader)
        self.train(3)
        self.backward(4)

    @property
    def extras(self) -> dict[str, object]:
        return {
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            "generator": self.generator,
        }

    def guard(self) -> Guard:
        return Guard(self.model, self.optimizer, loader=self.loader, extras=self.extras)

    def backward(self, size: int) -> torch.Tensor:
        x, y = torch.randn(size, 3, 5, 5), torch.arange(size) % 2
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        return loss

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        self.optimizer.zero_grad()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            x, y = next(self.batches)
            self.scaler.scale(nn.functional.cross_entropy(self.model(x), y)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            self.step()

    def harm(self) -> None:
        """Does what a careless probe does."""
        self.model.train()
        self.model.frozen.requires_grad_(True)
        iter(self.loader)
        for size in (2, 8):
            self.optimizer.zero_grad()
            self.backward(size)
            self.step()

    def witness(self) -> str:
        """A fingerprint written down independently of the guard's own walk."""
        model = self.model
        values: list[object] = []
        for name, module in model.named_modules():
            hooks = (len(module._forward_hooks), len(module._forward_pre_hooks), "forward" in vars(module))
            values.append((name, type(module).__name__, module.training, hooks))
        for tensor in [*model.parameters(), *model.buffers(), model.plain_tensor, model.expanded]:
            grad = None if tensor.grad is None else tensor.grad
            values.append((tensor, tensor.stride(), tensor.requires_grad, grad, tensor.is_leaf))
            values.append((len(tensor._backward_hooks or ()), sorted(vars(tensor))))
        values.append((model.first.weight is model.tied.weight, model.calls, model.config.use_cache))
        values.append((model.history, model.options, model.array, model.rng.bit_generator.state))
        values.append((sorted(vars(model)), model.state_dict(), model.config.__dict__))
        optimizer = self.optimizer
        values.append([[optimizer.state.get(p) for p in group["params"]] for group in optimizer.param_groups])
        values.append([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])
        values.append((optimizer.defaults, len(optimizer._optimizer_step_pre_hooks), len(optimizer.state)))
        values.append({k: v for k, v in self.scheduler.state_dict().items() if not callable(v)})
        values.append((self.scaler.state_dict(), self.ema.state_dict(), self.generator.get_state()))
        values.append((self.loader.generator.get_state(), vars(self.loader).get("_iterator")))
        values.append((random.getstate(), np.random.get_state(), torch.get_rng_state()))
        return fingerprint(values)


def _untie(world: World) -> None:
    world.model.tied.weight = nn.Parameter(world.model.first.weight.detach().clone())


def _flip_sign_of_zero(world: World) -> None:
    world.model.plain_tensor[0] = -0.0


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def _state(world: World) -> dict[str, Any]:
    state: dict[str, Any] = world.optimizer.state[world.optimizer.param_groups[0]["params"][0]]
    return state


def _in_no_grad(change: Callable[[World], object]) -> Callable[[World], object]:
    def mutate(world: World) -> None:
        with torch.no_grad():
            change(world)

    return mutate


def _buffer_joins_graph(world: World) -> None:
    world.model.statistics.add_(world.model.head.weight.sum() * 0)


def _replace_groups(world: World) -> None:
    world.optimizer.load_state_dict(world.optimizer.state_dict())


def _channels_last(world: World) -> None:
    weight = world.model.get_parameter("conv.parametrizations.weight.original")
    weight.data = weight.data.to(memory_format=torch.channels_last).clone(memory_format=torch.preserve_format)


def _half(world: World) -> None:
    world.model.head.to(torch.bfloat16)


def _reorder(world: World) -> None:
    modules = world.model._modules
    modules["conv"] = modules.pop("conv")


MUTATORS: dict[str, tuple[str, Callable[[World], object]]] = {
    "parameter": ("model.head.weight", _in_no_grad(lambda w: w.model.head.weight.add_(1))),
    "one ulp": (
        "model.head.weight",
        _in_no_grad(lambda w: w.model.head.weight.view(torch.int32)[0, 0].add_(1)),
    ),
    "sign of zero": ("model.plain_tensor", _flip_sign_of_zero),
    "tied parameter": ("model.first.weight", _in_no_grad(lambda w: w.model.tied.weight.zero_())),
    "untied": ("model.tied.weight", _untie),
    "frozen parameter": ("model.frozen.bias", _in_no_grad(lambda w: w.model.frozen.bias.add_(1))),
    "strides": ("model.conv.parametrizations.weight.original", _channels_last),
    "dtype": ("model.head.weight", _half),
    "batch norm mean": ("model.norm.running_mean", lambda w: w.model.norm.get_buffer("running_mean").add_(1)),
    "batch norm count": (
        "model.norm.num_batches_tracked",
        lambda w: w.model.norm.get_buffer("num_batches_tracked").add_(1),
    ),
    "spectral norm": ("model.conv.parametrizations.weight.0._u", lambda w: w.model.conv.train().weight),
    "non-persistent buffer": ("model.statistics", lambda w: w.model.statistics.add_(1)),
    "buffer rebound": ("model.statistics", lambda w: setattr(w.model, "statistics", torch.ones(4))),
    "buffer in a graph": ("model.statistics.grad_fn", _buffer_joins_graph),
    "expanded buffer": ("model.expanded", lambda w: w.model.expanded[:1].add_(1)),
    "buffer added": ("model.extra", lambda w: w.model.register_buffer("extra", torch.ones(1))),
    "submodule added": ("model.extra", lambda w: w.model.add_module("extra", nn.ReLU())),
    "submodule replaced": ("model.drop", lambda w: setattr(w.model, "drop", nn.Identity())),
    "submodule removed": ("model.drop", lambda w: delattr(w.model, "drop")),
    "submodules reordered": ("model (order of its entries)", _reorder),
    "gradient value": ("model.head.weight.grad", lambda w: _gradient(w.model.head.weight).mul_(2)),
    "gradient dropped": ("model.head.weight.grad", lambda w: w.optimizer.zero_grad()),
    "gradient replaced": (
        "model.head.weight.grad",
        lambda w: setattr(w.model.head.weight, "grad", torch.ones(2, 4)),
    ),
    "gradient appeared": (
        "model.frozen.bias.grad",
        lambda w: setattr(w.model.frozen.bias, "grad", torch.ones(2)),
    ),
    "requires_grad": ("model.frozen.weight.requires_grad", lambda w: w.model.frozen.requires_grad_(True)),
    "mode": ("model.norm.training", lambda w: w.model.train()),
    "int attribute": ("model.calls", lambda w: setattr(w.model, "calls", 99)),
    "attribute added": ("model.cache", lambda w: setattr(w.model, "cache", 1)),
    "attribute removed": ("model.calls", lambda w: delattr(w.model, "calls")),
    "object attribute rebound": (
        "model.config",
        lambda w: setattr(w.model, "config", SimpleNamespace(use_cache=1)),
    ),
    "config changed": ("model.config.use_cache", lambda w: setattr(w.model.config, "use_cache", False)),
    "list attribute": ("model.history", lambda w: w.model.history.append(4)),
    "dict attribute": ("model.options.dtype", lambda w: w.model.options.update(dtype=torch.bfloat16)),
    "set attribute": ("model.options.names", lambda w: w.model.options["names"].add("c")),
    "array attribute": ("model.array", lambda w: w.model.array.fill(7)),
    "forward wrapped": ("model.head.forward", lambda w: setattr(w.model.head, "forward", lambda x: x)),
    "forward hook": (
        "model.head._forward_hooks",
        lambda w: w.model.head.register_forward_hook(lambda *a: None),
    ),
    "pre hook": ("model._forward_pre_hooks", lambda w: w.model.register_forward_pre_hook(lambda *a: None)),
    "tensor hook": (
        "model.head.weight._backward_hooks",
        lambda w: w.model.head.weight.register_hook(lambda g: g),  # type: ignore[no-untyped-call]  # torch has no types here
    ),
    "tensor attribute": ("model.head.weight.tag", lambda w: setattr(w.model.head.weight, "tag", 1)),
    "optimizer moment": ("optimizer.state[0].exp_avg", lambda w: _state(w)["exp_avg"].mul_(2)),
    "optimizer step count": ("optimizer.state[0].step", lambda w: _state(w)["step"].add_(1)),
    "optimizer moment replaced": (
        "optimizer.state[0].exp_avg",
        lambda w: _state(w).update(exp_avg=torch.ones(4)),
    ),
    "optimizer state cleared": ("optimizer.state[0]", lambda w: w.optimizer.state.clear()),
    "optimizer foreign state": (
        "optimizer.state[?]",
        lambda w: w.optimizer.state.update({torch.ones(1): {}}),
    ),
    "learning rate": ("optimizer.param_groups[0].lr", lambda w: w.optimizer.param_groups[0].update(lr=7.0)),
    "foreach": (
        "optimizer.param_groups[0].foreach",
        lambda w: w.optimizer.param_groups[0].update(foreach=True),
    ),
    "groups replaced": ("optimizer.param_groups", _replace_groups),
    "group added": (
        "optimizer.param_groups",
        lambda w: w.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
    ),
    "optimizer default": ("optimizer.defaults.lr", lambda w: w.optimizer.defaults.update(lr=9.0)),
    "optimizer hook": (
        "optimizer._optimizer_step_pre_hooks",
        lambda w: w.optimizer.register_step_pre_hook(lambda *a: None),
    ),
    "scheduler": ("scheduler.last_epoch", lambda w: setattr(w.scheduler, "last_epoch", 50)),
    "scaler": ("scaler._scale", lambda w: vars(w.scaler)["_scale"].mul_(2)),
    "scaler update": ("scaler._scale", lambda w: w.scaler.update(2.0)),
    "ema": ("ema.module.head.weight", _in_no_grad(lambda w: w.ema.module.get_parameter("head.weight").add_(1))),
    "ema count": ("ema.n_averaged", lambda w: w.ema.n_averaged.add_(1)),
    "passed generator": ("generator", lambda w: torch.rand(1, generator=w.generator)),
    "model's generator": ("model.rng", lambda w: w.model.rng.random()),
    "loader's generator": ("loader.generator", lambda w: next(iter(w.loader))),
    "torch rng": ("rng.torch", lambda w: torch.rand(1)),
    "python rng": ("rng.python", lambda w: random.random()),
    "numpy rng": ("rng.numpy", lambda w: np.random.rand()),
}
