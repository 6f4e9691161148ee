"""The gates as tests ask them: on one batch, and within the limits of reduced precision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.accumulation import accumulation
from autofit.gates.gradients import Steps
from autofit.gates.technique import technique
from autofit.gates.verdict import GateVerdict
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.counted_batches import Cuttable, counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.probing import targets

Build = Callable[[Plan], TrainStep]


def accumulated(build: Build, batch: Any, seed: int = 0) -> GateVerdict:
    """Returns the verdict on accumulation of one batch."""
    return accumulation(Steps(build, seed), [Cuttable.of(batch)])


def rounded(build: Build, plan: Plan, batch: Any, seed: int = 0) -> GateVerdict:
    """Returns the verdict on a plan that computes in reduced precision."""
    return technique(Steps(build, seed), plan, counted(batch), rounded=True)


Loss = Callable[[nn.Module, Any], torch.Tensor]


def build(model: nn.Module, loss: Loss, max_grad_norm: float | None = None) -> Build:
    torch.optim.SGD(model.parameters())  # the first optimizer loads torch's compiler, which sets environment variables

    def make(plan: Plan) -> TrainStep:
        rule = LossRule("loss", loss, inferred=False, about="")
        optimizer = torch.optim.SGD(model.parameters())
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu"), max_grad_norm=max_grad_norm), members())

    return make


def mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def total(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def contrastive(model: nn.Module, batch: Any) -> torch.Tensor:
    """InfoNCE: each sample against all others of its batch."""
    first, second = F.normalize(model(batch[0])), F.normalize(model(batch[0] + 0.1))
    return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))


def balanced(model: nn.Module, batch: Any) -> torch.Tensor:
    """The balance term of a mixture of experts: a square of a mean over the batch."""
    return mean(model, batch) + F.softmax(model(batch[0]), 1).mean(0).square().sum()


def norm(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm1d(16),
        "layer": lambda: nn.LayerNorm(16),
        "group": lambda: nn.GroupNorm(4, 16),
        "dropout": lambda: nn.Dropout(0.5),
        "frozen": lambda: nn.BatchNorm1d(16).eval(),
        "by hand": lambda: ByHand(16),
        "none": nn.Identity,
    }
    return nn.Sequential(nn.Linear(8, 16), layers[kind](), nn.ReLU(), nn.Linear(16, 4))


class ByHand(nn.Module):
    """Batch normalisation as people write it themselves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.mean: torch.Tensor
        self.variance: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.variance.lerp_(variance, 0.1)
        return self.gain * (x - mean) / (variance + 1e-5).sqrt()


def in_training(loss: Loss) -> Loss:
    """A loss of training; in evaluation it is a mean over samples."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model, batch) if model.training else mean(model, batch)

    return step


def vectors(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator)


def tokens(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return targets.pad([torch.arange(1, length + 1) % 31 + 1 for length in lengths])


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.named_parameters()}
    generator = torch.get_rng_state()
    yield
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


BF16, FP16 = Plan(values={"precision": "bf16"}), Plan(values={"precision": "fp16"})


class Recurrent(nn.Module):
    """A recurrent layer that behaves on the CPU as cuDNN's does: it has no backward pass in evaluation mode.

    Args:
        by_hand: whether the kernel is called by a module of the user's own, which is no layer of torch.
    """

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cells, self.head = nn.LSTM(8, 16, batch_first=True, dropout=0.0), nn.Linear(16, 4)
        self.by_hand = by_hand

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.cells(x[:, None])[0][:, -1]
        if hidden.requires_grad and not (self.training if self.by_hand else self.cells.training):
            hidden.register_hook(_no_backward)  # type: ignore[no-untyped-call]  # torch has no types here
        output: torch.Tensor = self.head(hidden)
        return output


def _no_backward(gradient: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")
