"""Models with repeated blocks, and a short training of them: what the tests of checkpointing and of recompute share."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from autofit.core.plan import KnobValue, Plan
from autofit.strategies.base import Facts
from autofit.strategies.checkpointing import Checkpointing
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft

STRATEGY = Checkpointing()


def mean_loss(model: nn.Module, part: Tensor) -> Tensor:
    loss: Tensor = model(part).square().mean()
    return loss


LOSS = LossRule("step_fn", mean_loss, inferred=False, about="the mean of the squared output")


class Block(nn.Module):
    def __init__(self, width: int = 8, norm: Callable[[int], nn.Module] = nn.LayerNorm, p: float = 0.1) -> None:
        super().__init__()
        self.norm, self.dropout = norm(width), nn.Dropout(p)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, *, scale: float = 1.0, extra: dict[str, list[nn.Parameter]] | None = None) -> Tensor:
        x = x if extra is None else x + extra["bias"][0]
        output: Tensor = x + scale * self.dropout(self.down(torch.tanh(self.up(self.norm(x)))))
        return output


class Gpt(nn.Module):
    """A hand-written GPT; `calls` > 1 shares the weights of its blocks between depths."""

    def __init__(self, blocks: int = 4, calls: int = 1, **options: Any) -> None:
        super().__init__()
        self.embed, self.calls = nn.Embedding(16, 8), calls
        self.blocks = nn.ModuleList([Block(**options) for _ in range(blocks)])
        self.head = nn.Linear(8, 16)
        self.bias = nn.Parameter(torch.ones(8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for _ in range(self.calls):
            for block in self.blocks:
                x = block(x, scale=0.5, extra={"bias": [self.bias]})
        output: Tensor = self.head(x)
        return output


class Conv(nn.Module):
    def __init__(self, width: int, momentum: float | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width, momentum=momentum)
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, padding=1),
            nn.InstanceNorm2d(width, track_running_stats=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(*[Conv(4, momentum) for _ in range(2)])
        self.layer2 = nn.Sequential(*[Conv(4, momentum) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer2(self.layer1(self.stem(x))).mean((2, 3))
        return output


class Codebook(nn.Module):
    """Uses its buffer, then updates it, from the second call on if `late`."""

    mean: Tensor
    mask: Tensor
    last: Tensor | None

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.linear, self.calls, self.late = nn.Linear(8, 8), 0, late
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("mask", torch.ones(8))
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.linear(x)) * (1 + self.mean) * self.mask
        if not self.late or self.calls:
            self.mean.lerp_(x.detach().mean(0), 0.5)
            self.last = x.detach()[0]
        self.calls = 1
        return x


class OwnNorm(nn.Module):
    """A batch norm by hand: torch updates its buffers without counting a new version of them."""

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("variance", torch.ones(8))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.data.add_(1)
        return nn.functional.batch_norm(self.linear(x), self.mean, self.variance, training=True)


class FlatNorm(nn.BatchNorm1d):
    """BatchNorm over the tokens of a batch. Its forward is its own, so it is watched like any other module."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


def codebooks(**options: Any) -> nn.Module:
    return nn.Sequential(*[Codebook(**options) for _ in range(3)])


def spectral() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.Tanh()) for _ in range(3)])


def old_spectral() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Tanh()) for _ in range(3)])


def tokens() -> Tensor:
    return torch.arange(24).reshape(4, 6) % 16


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "gpt": (Gpt, tokens()),
    "shared weights": (lambda: Gpt(calls=2), tokens()),
    "nested sequential": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.Sequential(*[Block() for _ in range(4)]), nn.Linear(8, 2)),
        torch.linspace(-1, 1, 15).reshape(5, 3),
    ),
    "resnet": (ResNet, torch.linspace(-1, 1, 600).reshape(2, 3, 10, 10).cos()),
    "resnet, cumulative": (lambda: ResNet(None), torch.linspace(-1, 1, 600).reshape(2, 3, 10, 10).cos()),
    "codebook": (codebooks, torch.linspace(-1, 1, 32).reshape(4, 8)),
    "own norm": (
        lambda: nn.Sequential(*[nn.Sequential(OwnNorm(), nn.Tanh()) for _ in range(3)]),
        torch.linspace(-1, 1, 32).reshape(4, 8).sin(),
    ),
    "spectral norm": (spectral, torch.linspace(-1, 1, 32).reshape(4, 8)),
    "old spectral norm": (old_spectral, torch.linspace(-1, 1, 32).reshape(4, 8)),
}


def draft_of(model: nn.Module, **options: Any) -> Draft:
    return Draft(model=model, loss=LOSS, optimizer=None, device=torch.device("cpu"), **options)


def plan_of(count: KnobValue) -> Plan:
    return Plan(values={"checkpointed_blocks": count})


def facts_of(model: nn.Module, training: bool = True) -> Facts:
    return Facts(
        model=model, batch=None, optimizer=None, device_type="cpu", capabilities=frozenset(), numerics="exact",
        training=training, micro_batch_size=4,
    )  # fmt: skip


def applied(model: nn.Module, count: KnobValue) -> AbstractContextManager[None]:
    return STRATEGY.apply(plan_of(count), draft_of(model))


def trained(
    model: nn.Module,
    batch: Tensor,
    count: KnobValue,
    steps: int = 3,
    loss: Callable[[nn.Module, Tensor], Tensor] = mean_loss,
) -> dict[str, Tensor]:
    """Trains a copy of `model` with plain SGD and returns its weights, buffers and last gradients."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    with applied(model, count):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, batch).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
    assert not any("forward" in vars(module) for module in model.modules())
    gradients = {f"{name}.grad": weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {**model.state_dict(), **gradients}


def saved_bytes(model: nn.Module, batch: Tensor, loss: Callable[[nn.Module, Tensor], Tensor] = mean_loss) -> int:
    """Returns the bytes of distinct storages that autograd keeps after the forward pass, weights not counted."""
    known = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(model, batch)
    result.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    return sum(kept.values())


def trace_of(model: nn.Module) -> list[dict[str, object]]:
    """Returns what hangs on each module: all attributes by identity, entries of its dictionaries by identity."""
    return [
        {
            key: {name: id(entry) for name, entry in value.items()} if isinstance(value, dict) else id(value)
            for key, value in vars(owner).items()
        }
        for module in model.modules()
        for owner in (module, getattr(module, "config", None))
        if hasattr(owner, "__dict__")
    ]


def fail(*_: object) -> NoReturn:
    raise RuntimeError("injected")
