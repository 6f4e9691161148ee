"""State in containers and plain objects, and in loss functions."""

import random
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from autofit.guard.object_state import fingerprint
from tests.faults.holders import Holder, bits, holder, loss_of


@dataclass
class Record:
    """A data class."""

    count: int = 0
    values: list[float] = field(default_factory=list)
    mean: torch.Tensor = field(default_factory=lambda: torch.zeros(2))


@dataclass(slots=True, frozen=True)
class Frozen:
    """A frozen data class with slots, which cannot be written but holds what can."""

    values: list[float] = field(default_factory=list)


class Slots:
    """An object without a dictionary."""

    __slots__ = ("count", "later", "total")

    def __init__(self) -> None:
        self.count, self.total = 0, torch.zeros(1)


def held(thing: Any, change: Callable[[Any], object], state: Callable[[], Any]) -> Holder:
    """Returns the holder of a thing that a closure's step changes."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        change(thing)
        return loss_of(model, batch)

    return Holder({"step_fn": step}, state, lambda: [thing])


@holder
def simple_namespace() -> Holder:
    thing = SimpleNamespace(count=0, inner=SimpleNamespace(mean=torch.zeros(2)))

    def change(thing: Any) -> None:
        thing.count += 1
        thing.inner.mean += 1
        thing.added = True

    return held(thing, change, lambda: [thing.count, thing.inner.mean.clone(), hasattr(thing, "added")])


@holder
def data_class() -> Holder:
    thing = Record()

    def change(thing: Record) -> None:
        thing.count += 1
        thing.values.append(1.0)
        thing.mean = thing.mean + 1

    return held(thing, change, lambda: [thing.count, list(thing.values), thing.mean.clone()])


@holder
def frozen_data_class() -> Holder:
    thing = Frozen()
    return held(thing, lambda thing: thing.values.append(1.0), lambda: list(thing.values))


@holder
def slots_object() -> Holder:
    thing = Slots()

    def change(thing: Slots) -> None:
        thing.count += 1
        thing.total.add_(1)
        thing.later = 1  # type: ignore[attr-defined]  # it has a dictionary too

    return held(thing, change, lambda: [thing.count, thing.total.clone(), hasattr(thing, "later")])


@holder
def nested_containers() -> Holder:
    thing: dict[str, Any] = {"a": [{"b": (torch.zeros(2), [1])}], "set": {1}, "queue": deque([1])}

    def change(thing: dict[str, Any]) -> None:
        tensor, items = thing["a"][0]["b"]
        tensor.add_(1)
        items.append(2)
        thing["set"].add(len(items))
        thing["queue"].appendleft(3)

    return held(thing, change, lambda: [*thing["a"][0]["b"], thing["set"], thing["queue"]] and fingerprint(thing))


@holder
def dictionaries_of_other_kinds() -> Holder:
    thing = (OrderedDict(a=1, b=2), defaultdict(int, x=1), Counter("ab"))

    def change(thing: Any) -> None:
        thing[0].move_to_end("a")
        thing[1]["y"] += 1
        thing[2].update("a")

    return held(thing, change, lambda: [list(thing[0].items()), dict(thing[1]), dict(thing[2])])


@holder
def generators_and_arrays() -> Holder:
    thing: list[Any] = [
        torch.Generator().manual_seed(1),
        random.Random(2),
        np.random.default_rng(3),
        np.random.RandomState(4),
    ]
    arrays: list[Any] = [np.zeros(3), bytearray(b"ab"), np.asfortranarray(np.zeros((2, 3)))]

    def change(thing: Any) -> None:
        torch.rand(1, generator=thing[0])
        _ = thing[1].random(), thing[2].random(), thing[3].rand()
        arrays[0] += 1
        arrays[1][0] = 1
        arrays[2][1] = 4

    def state() -> Any:
        return [
            thing[0].get_state(), thing[1].getstate(), thing[2].bit_generator.state, thing[3].get_state(),
            arrays[0].copy(), bytes(arrays[1]), arrays[2].copy(),
        ]  # fmt: skip

    return held(thing, change, state)


@holder
def arrays_of_objects_masks_and_views() -> Holder:
    ragged = np.empty(2, dtype=object)
    ragged[0], ragged[1] = np.zeros(2), {"n": 0}
    masked: Any = np.ma.MaskedArray(np.zeros(3), mask=np.array([False, False, True]))
    whole = np.zeros(2)
    view: Any = whole[:]
    view.setflags(write=False)
    thing = [ragged, masked, view]

    def change(thing: Any) -> None:
        ragged[0][0] += 1
        ragged[1]["n"] += 1
        masked.mask[0] = ~masked.mask[0]
        masked.data[2] += 1
        view.base[0] += 1

    def state() -> Any:
        return [ragged[0].copy(), dict(ragged[1]), masked.mask.copy(), masked.data.copy(), view.copy()]

    return held(thing, change, state)


@holder
def views_of_containers() -> Holder:
    buffer, inner = bytearray(4), [0]
    chain, values = ChainMap({}, {"a": 1}), {nn.Linear(1, 1): 1}
    thing = [chain, memoryview(buffer), MappingProxyType({"inner": inner}), values]

    def change(thing: Any) -> None:
        chain["a"] = chain["a"] + 1
        thing[1][0] += 1
        inner[0] += 1
        for key in values:
            key.weight.data.add_(1)

    def state() -> Any:
        return [dict(chain), bytes(buffer), list(inner), [key.weight.detach().clone() for key in values]]

    return held(thing, change, state)


class Focal:
    """A loss with a memory of its own."""

    def __init__(self) -> None:
        self.calls, self.weights = 0, torch.ones(2)

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.weights.mul_(0.9)
        return F.cross_entropy(outputs, targets)


class CentreLoss(nn.Module):
    """A loss with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        self.centre: torch.Tensor

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.centre.add_(outputs.detach().mean(0))
        return F.cross_entropy(outputs, targets)


@holder
def loss_that_is_a_plain_object() -> Holder:
    loss = Focal()
    return Holder({"loss_fn": loss}, lambda: [loss.calls, loss.weights.clone()], lambda: [loss.weights])


@holder
def loss_that_is_a_module() -> Holder:
    loss = CentreLoss()
    return Holder({"loss_fn": loss}, lambda: bits(loss.centre), lambda: [loss.centre])


@holder
def loss_that_is_a_closure() -> Holder:
    running = {"mean": torch.zeros(2)}

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        running["mean"] = running["mean"] + outputs.detach().mean(0)
        return F.cross_entropy(outputs, targets)

    return Holder({"loss_fn": loss}, lambda: bits(running["mean"]), lambda: [running["mean"]])
