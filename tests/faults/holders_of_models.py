"""State that hooks and helpers of models and optimizers hold."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.faults.holders import Holder, averaged, bits, holder, net, parameters

STATISTICS = {"mean": torch.zeros(2)}


@holder
def forward_and_backward_hooks() -> Holder:
    model, seen, gradients = net(), [0], []

    def note_gradient(module: nn.Module, given: Any, made: Any) -> None:
        gradients.append(made[0].norm().item())

    first, last = model.get_submodule("0"), model.get_submodule("2")
    first.register_forward_hook(lambda module, inputs, output: seen.__setitem__(0, seen[0] + 1))
    first.register_full_backward_hook(note_gradient)
    last.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs)))
    return Holder({"model": model}, lambda: [list(seen), list(gradients)])


@holder
def hook_of_a_parameter() -> Holder:
    model, norms = net(), []
    model.get_parameter("0.weight").register_hook(lambda gradient: norms.append(gradient.norm().item()))  # type: ignore[no-untyped-call]  # torch has no types here
    return Holder({"model": model}, lambda: list(norms))


@holder
def hooks_of_the_optimizer() -> Holder:
    model = net()
    ema, steps = net(), [0]
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: steps.__setitem__(0, steps[0] + 1))
    optimizer.register_step_post_hook(lambda *_: averaged(ema, model))
    return Holder({"model": model, "optimizer": optimizer}, lambda: [parameters(ema), list(steps)])


class Shadow:
    """A plain helper that averages weights."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.history = [SimpleNamespace(steps=0)]

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name].lerp_(parameter.detach() + 1, 0.1)
        self.history[0].steps += 1


class WithHelper(nn.Module):
    """A model that keeps a helper of its own."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.layers = net()
        self.helper = Shadow(self.layers)
        self.notes = SimpleNamespace(sizes=[])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.helper.update(self.layers)
        self.notes.sizes.append(len(x))
        type(self).total += 1
        STATISTICS["mean"].add_(1)
        output: torch.Tensor = self.layers(x)
        return output


@holder
def helper_on_the_model() -> Holder:
    model = WithHelper()

    def state() -> Any:
        helper = model.helper
        counts = [helper.history[0].steps, list(model.notes.sizes), WithHelper.total]
        return [bits(*helper.shadow.values()), counts, STATISTICS["mean"].clone()]

    return Holder({"model": model}, state, lambda: [model.helper, *model.helper.shadow.values()])


@holder
def hook_that_is_a_bound_method() -> Holder:
    class Watcher:
        def __init__(self) -> None:
            self.means = torch.zeros(8)

        def hook(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.means += output.detach().mean(0)

    model, watcher = net(), Watcher()
    model.get_submodule("0").register_forward_hook(watcher.hook)
    return Holder({"model": model}, lambda: bits(watcher.means), lambda: [watcher.means])
