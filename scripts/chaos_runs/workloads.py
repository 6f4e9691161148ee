"""Small workloads of many kinds, each with a fault at a random place, for scripts/chaos.

`make_workload` is the factory for the command line. In process, `made` also returns the other objects of the workload,
so that all of them can be compared afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from scripts.chaos_runs.faults import Fault


@dataclass
class Made:
    """A workload with everything that belongs to it.

    Attributes:
        arguments: arguments for `autofit.tune`.
        beside: other objects that its functions hold and that a tuner must not change.
    """

    arguments: dict[str, Any]
    beside: dict[str, Any] = field(default_factory=dict)


class Samples(torch.utils.data.Dataset[Any]):
    """Samples that are the same at each access."""

    def __init__(self, make: Callable[[int], Any], fault: Fault, count: int = 48) -> None:
        self.make, self.fault, self.count = make, fault, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.fault.visit("data", self.make(index))


class Faulty(nn.Module):
    """A model that visits a fault in its passes."""

    def __init__(self, inner: nn.Module, fault: Fault) -> None:
        super().__init__()
        self.inner, self._fault = inner, SimpleNamespace(at=fault)

    def forward(self, *inputs: Any) -> torch.Tensor:
        output: torch.Tensor = self._fault.at.visit("forward", self.inner(*inputs))
        if self._fault.at.place == "backward" and output.requires_grad:
            hook = partial(self._fault.at.visit, "backward")
            output.register_hook(hook)  # type: ignore[no-untyped-call]  # torch has no types here
        return output


class Step(torch.optim.SGD):
    """An optimizer that visits a fault."""

    fault: Fault

    def step(self, closure: Any = None) -> Any:
        self.fault.visit("optimizer")
        return super().step(closure)


def _collate(fault: Fault, samples: list[Any]) -> Any:
    return fault.visit("collate", torch.utils.data.default_collate(samples))


def _loss(fault: Fault, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = fault.visit("loss", functional.cross_entropy(outputs, targets))
    return loss


def _vector(width: int, index: int) -> tuple[torch.Tensor, int]:
    return torch.sin(torch.arange(width) * (index + 1.0)), index % 4


def _image(side: int, index: int) -> tuple[torch.Tensor, int]:
    return torch.cos(torch.arange(3 * side * side) * (index + 1.0)).reshape(3, side, side), index % 4


def _tokens(length: int, index: int) -> tuple[torch.Tensor, int]:
    return (torch.arange(length) * (index + 3)) % 50, index % 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.rnn(inputs.reshape(len(inputs), -1, 8))[0][:, -1])
        return answer


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.blocks(self.embed(ids)).mean(1))
        return answer


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 4))


def _tied() -> nn.Module:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, nn.Linear(16, 4))


def _frozen() -> nn.Module:
    model = _mlp()
    next(model.parameters()).requires_grad_(False)
    return model


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "mlp": (_mlp, partial(_vector, 16)),
    "tied": (_tied, partial(_vector, 16)),
    "frozen": (_frozen, partial(_vector, 16)),
    "convolutional": (_convolutional, partial(_image, 12)),
    "recurrent": (Recurrent, partial(_vector, 32)),
    "encoder": (Encoder, partial(_tokens, 12)),
}


def _plain(name: str, fault: Fault) -> Made:
    make, sample = MODELS[name]
    model = Faulty(make(), fault)
    optimizer = Step(model.parameters(), lr=0.01, momentum=0.9)
    optimizer.fault = fault
    loader = torch.utils.data.DataLoader(
        Samples(sample, fault), batch_size=4, shuffle=True, collate_fn=partial(_collate, fault)
    )
    arguments = {"model": model, "loader": loader, "optimizer": optimizer, "loss_fn": partial(_loss, fault)}
    return Made(arguments)


def _teacher(fault: Fault) -> Made:
    """A step function that keeps a moving average of the model and a counter."""
    made = _plain("mlp", fault)
    teacher, seen = _mlp(), {"steps": 0, "losses": list[float]()}

    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
            wanted = teacher(inputs)
        loss = functional.cross_entropy(model(inputs), targets) + 0.1 * functional.mse_loss(model(inputs), wanted)
        seen["steps"] += 1  # type: ignore[operator]  # an int
        found: torch.Tensor = fault.visit("loss", loss)
        return found

    made.arguments |= {"loss_fn": None, "step_fn": step_fn}
    made.beside = {"teacher": teacher, "seen": seen}
    return made


class Adversary:
    """A bound step function with a second model and a second optimizer."""

    def __init__(self, fault: Fault) -> None:
        self.critic = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        self.fault, self.history = fault, list[float]()

    def step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Trains the critic; returns the loss of the model."""
        inputs, _ = batch
        made = model(inputs)
        self.optimizer.zero_grad()
        critic_loss = functional.softplus(-self.critic(made.detach())).mean()
        critic_loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        self.optimizer.step()
        self.history.append(float(critic_loss))
        loss: torch.Tensor = self.fault.visit("loss", functional.softplus(self.critic(made)).mean())
        return loss


def _adversary(fault: Fault) -> Made:
    made, adversary = _plain("mlp", fault), Adversary(fault)
    made.arguments |= {"loss_fn": None, "step_fn": adversary.step}
    made.beside = {"critic": adversary.critic, "optimizer": adversary.optimizer, "history": adversary.history}
    return made


def _noise(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, _ = batch
    noise = torch.randn_like(inputs)
    return functional.mse_loss(model(inputs + noise).mean(1), noise.mean(1))


def _noisy(fault: Fault) -> Made:
    made = _plain("mlp", fault)
    made.arguments |= {"loss_fn": None, "step_fn": lambda model, batch: fault.visit("loss", _noise(model, batch))}
    return made


def _bags(fault: Fault) -> Made:
    """Bags of tokens of different lengths, concatenated with offsets."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(50, 8), nn.Linear(8, 4)

        def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.bag(values, offsets))
            return answer

    def sample(index: int) -> tuple[torch.Tensor, int]:
        return (torch.arange(1 + index % 5) + index) % 50, index % 4

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([0, *(len(values) for values, _ in samples)])
        batch = {
            "values": torch.cat([values for values, _ in samples]),
            "offsets": lengths.cumsum(0)[:-1],
            "targets": torch.tensor([target for _, target in samples]),
        }
        found: dict[str, torch.Tensor] = fault.visit("collate", batch)
        return found

    model = Faulty(Bag(), fault)

    def step_fn(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return _loss(fault, model(batch["values"], batch["offsets"]), batch["targets"])

    loader = torch.utils.data.DataLoader(Samples(sample, fault), batch_size=4, collate_fn=collate)
    return Made({"model": model, "loader": loader, "step_fn": step_fn})


def _listed(fault: Fault) -> Made:
    """A plain list of ready batches, and an optimizer recipe."""
    made = _plain("mlp", fault)
    ready = [torch.utils.data.default_collate([_vector(16, 4 * n + i) for i in range(4)]) for n in range(8)]
    made.arguments |= {"loader": ready, "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.001)}
    return made


KINDS: dict[str, Callable[[Fault], Made]] = {
    **{name: partial(_plain, name) for name in MODELS},
    "teacher": _teacher,
    "adversary": _adversary,
    "noisy": _noisy,
    "bags": _bags,
    "listed": _listed,
}


def made(device: str, kind: str, fault: str, place: str, nth: int, lasting: bool) -> Made:
    """Returns a workload of a kind with its fault; it is the same each time."""
    torch.manual_seed(0)
    with torch.device(device):
        return KINDS[kind](Fault(fault, place, nth, lasting))


def make_workload(device: str, kind: str, fault: str, place: str, nth: int, lasting: bool) -> dict[str, Any]:
    """Returns the arguments for `autofit.tune`: the factory for the command line."""
    return made(device, kind, fault, place, nth, lasting).arguments
