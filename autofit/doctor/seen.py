"""Seen: what a watch notes of a training, and how it reads tensors and operators."""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from autofit.core.work import Work
from autofit.doctor.sites import Site, here
from autofit.memory.trace import Mark
from autofit.torch_internals import (
    BatchNorm,
    DropoutNd,
    FakeTensor,
    OpOverload,
    is_traceable_wrapper_subclass,
    is_wrapped_by_functorch,
    schema_of,
    storage_id,
)
from autofit.tracing.operation_count import Tally
from autofit.workloads.tree import live_tensors


@dataclass(slots=True)
class Saved:
    """A tensor that autograd saved for a backward pass.

    Attributes:
        handle: its allocation.
        site: where it was saved.
        step: the step in which it was saved.
        call: index in `Watch.calls` of the innermost call of a module that ran; -1 for none.
        created: whether a backward pass with `create_graph=True` saved it, whose line is `site`.
        used_at: number of the operator before which it was last used; -1 if it never was.
        event: number of events before that.
        trains: whether a pass has used it that makes more than the gradients of inputs.
    """

    handle: int
    site: Site
    step: int
    call: int = -1
    created: bool = False
    used_at: int = -1
    event: int = -1
    trains: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A call of a module.

    Attributes:
        site: the line that called it.
        outer: index in `Watch.calls` of the call in which it ran; -1 for none.
        module: index of the module; -1 if it is not one of the models.
        number: how often the module was called before in the same step.
    """

    site: Site
    outer: int
    module: int
    number: int


@dataclass(slots=True)
class Zeroed:
    """A gradient that was set to zero instead of being released.

    Attributes:
        handle: its allocation.
        step: the step in which it was set to zero.
        site: the line that did it.
        first: number of events before that.
        last: number of events before the next sum into it; -1 if there was none.
    """

    handle: int
    step: int
    site: Site
    first: int
    last: int = -1


@dataclass(frozen=True, slots=True)
class Dropped:
    """A gradient that was zeroed or replaced before an optimizer read it.

    Attributes:
        parameter: id of its parameter.
        handle: its allocation; None if that is not recorded.
        size_bytes: bytes of the gradient.
        site: the backward pass that made it, or added to it.
        number: number of that pass in its step, from 1.
        made_at: number of the last operator before it was complete: the sum, if it was added to what was there.
        step: the step of that pass.
    """

    parameter: int
    handle: int | None
    size_bytes: int
    site: Site
    number: int
    made_at: int
    step: int


@dataclass(frozen=True, slots=True)
class Retained:
    """A backward pass with `retain_graph=True` or `create_graph=True`.

    Attributes:
        site: its line.
        step: its step.
        begun: number of the first operator of the pass.
        ended: number of the first operator after it.
    """

    site: Site
    step: int
    begun: int
    ended: int


class Pending(NamedTuple):
    """The gradient of a parameter that no optimizer has read yet.

    Attributes:
        gradient: the gradient.
        passes: what is dropped if it is zeroed now, one for each pass that has added to it.
    """

    gradient: "weakref.ref[torch.Tensor]"
    passes: Sequence[Dropped]


class Ran(NamedTuple):
    """An operator that computed something.

    Attributes:
        number: its number among the operators.
        backward: whether a backward pass ran it.
        reads: the allocations that it read.
        made: the allocations that it made, of which some are its own temporary memory.
        results: the allocations of the tensors that it returned, among them those that it changed in place.
        masked: whether an argument of it names the results that are needed, so that it makes no other.
        event: number of events after it.
    """

    number: int
    backward: bool
    reads: Sequence[int]
    made: range
    results: Sequence[int]
    masked: bool
    event: int


class Switched(NamedTuple):
    """A call of a module that computes something else in evaluation mode.

    Attributes:
        module: index of the module.
        training: its mode.
        gradients: whether gradients were enabled.
        caller: index in `Watch.calls` of the call in which it ran; -1 for none.
        step: the step in which it ran.
    """

    module: int
    training: bool
    gradients: bool
    caller: int
    step: int


class Cast(NamedTuple):
    """Casts of a parameter to another type.

    Attributes:
        step: the step.
        handle: the parameter's allocation.
        dtype: the other type.
        trained: whether the parameter needs a gradient.
    """

    step: int
    handle: int
    dtype: torch.dtype
    trained: bool


@dataclass(eq=False)
class Seen:
    """What a watch has seen of a training.

    Attributes:
        saved, zeroed, dropped, retained: what happened to saved tensors and gradients.
        pending: the gradients that no optimizer has read, by id of the parameter.
        ran: the operators, in order.
        let_go: number of events after which nothing but a graph held each allocation, by handle, as far as known.
        created: the passes with `create_graph=True`, which are not in `retained`.
        resting: see `resting`.
        gradients: parameter, by id, of which each allocation was the gradient, by handle.
        last_gradient: the last step in which each parameter, by id, got a gradient.
        models: the models that are alive, by the name that their modules have in front; "" for a single one.
        alone: the parameters that are alive and in no module, by the way to them.
        unlisted: ids of the parameters that a model holds in lists or attributes of which torch does not know.
        ends: number of operators at the end of each step.
        optimizers: the optimizers that stepped, by id.
        switches: the calls of modules that depend on their mode.
        scales: weight of each normalisation when it was first called without gradients, by index of the module.
        recomputed: whether a module ran inside a backward pass, as under activation checkpointing.
        cut_off: the modules that reentrant checkpointing ran on inputs of which none needs a gradient, by its line.
        widened: the operators that brought float64 in, and their lines, with the float64 operands that were made
            outside; none if the operator itself widens.
        buffers: names of the models' buffers, by handle.
        waits: how often the host waited for the device, by reason and line; not in the update.
        casts: how often parameters were cast to another type.
        cleanings: how often `gc.collect` or the release of the allocator's cache was called, by name and line.
        work: the arithmetic and memory traffic of each step.
        levels: live bytes at the end of each step.
        nodes: nodes of graphs of earlier steps that are alive at the end of each step.
        begins: the sequence number of autograd's nodes with which each step began.
        outside: handles of allocations that were made where the watch does not see them, such as in a loader's workers.
        ready: those among them that were there before the watch, such as batches in a list.
        marks: where phases begin.
    """

    saved: list[Saved] = field(default_factory=list)
    zeroed: list[Zeroed] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    pending: dict[int, Pending] = field(default_factory=dict)
    retained: list[Retained] = field(default_factory=list)
    ran: list[Ran] = field(default_factory=list)
    let_go: dict[int, int] = field(default_factory=dict)
    created: list[Retained] = field(default_factory=list)
    resting: Mapping[nn.Module, Site] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    last_gradient: dict[int, int] = field(default_factory=dict)
    models: WeakValueDictionary[str, nn.Module] = field(default_factory=WeakValueDictionary)
    alone: WeakValueDictionary[str, torch.Tensor] = field(default_factory=WeakValueDictionary)
    unlisted: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    switches: set[Switched] = field(default_factory=set)
    scales: dict[int, torch.Tensor] = field(default_factory=dict)
    recomputed: bool = False
    cut_off: dict[Site, set[int]] = field(default_factory=dict)
    widened: dict[tuple[str, Site], set[int]] = field(default_factory=dict)
    buffers: dict[int, str] = field(default_factory=dict)
    waits: Counter[tuple[str, Site]] = field(default_factory=Counter)
    casts: Counter[Cast] = field(default_factory=Counter)
    cleanings: Counter[tuple[str, Site]] = field(default_factory=Counter)
    work: list[Work] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    outside: set[int] = field(default_factory=set)
    ready: set[int] = field(default_factory=set)
    marks: list[Mark] = field(default_factory=list)

    @property
    def with_gradient(self) -> KeysView[int]:
        """The ids of the parameters that got a gradient."""
        return self.last_gradient.keys()

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the qualified names and the parameters of all models, also those that they do not list."""
        several = len(self.models) > 1
        for prefix, model in self.models.items():
            before = prefix or (type(model).__name__ if several else "")
            for name, parameter in model.named_parameters():
                yield ".".join(part for part in (before, name) if part), parameter
        yield from self.alone.items()


class TensorEnd(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor that knows the handle of its allocation and the line that made it."""

    __slots__ = ("handle", "site")
    handle: int
    site: Site


class LiveTensors:
    """The tensors of this process. What was there at first is remembered, so that later only new objects are read.

    That needs Python's garbage collection to be off: a collection makes new objects old.
    """

    def __init__(self) -> None:
        self._old, self._collections = [weakref.ref(each) for each in live_tensors()], _collections()

    def had(self, storage: int) -> bool:
        """Returns whether a tensor that was there at first, and still is, has this storage."""
        first = (tensor for each in self._old if (tensor := each()) is not None)
        return any(has_storage(each) and storage_id(each.untyped_storage()) == storage for each in first)

    def alive(self) -> Iterator[torch.Tensor]:
        """Yields the tensors that are alive."""
        if _collections() != self._collections:
            yield from live_tensors()
            return
        yield from (tensor for each in self._old if (tensor := each()) is not None)
        yield from (each for each in gc.get_objects(generation=0) if issubclass(type(each), torch.Tensor))


def _collections() -> int:
    return sum(int(each["collections"]) for each in gc.get_stats())


def replace_with(undo: ExitStack, owner: Any, name: str, instead: Callable[[Any], Any]) -> None:
    """Replaces a function by what is made of it, until the stack is left."""
    before, inherited = getattr(owner, name), name not in vars(owner)
    now = instead(before)

    def put_back() -> None:
        if getattr(owner, name) is now:  # else someone has replaced it since
            delattr(owner, name) if inherited else setattr(owner, name, before)

    undo.callback(put_back)
    setattr(owner, name, now)


@contextmanager
def resting() -> Iterator[Mapping[nn.Module, Site]]:
    """Yields the user's lines that put modules which depend on their mode into evaluation mode, while it is open."""
    found = weakref.WeakKeyDictionary[nn.Module, Site]()

    def noted(train: Callable[..., Any]) -> Callable[..., Any]:
        def switched(module: nn.Module, mode: bool = True) -> Any:
            if isinstance(module, (DropoutNd, BatchNorm)):
                found.pop(module, None)
                if not mode and (site := here()).user:
                    found[module] = site
            return train(module, mode)

        return switched

    with ExitStack() as undo:
        replace_with(undo, nn.Module, "train", noted)
        yield found


def has_storage(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor has memory of its own: not if it is sparse or fake, or wraps another."""
    return (
        tensor.layout is torch.strided
        and not isinstance(tensor, FakeTensor)
        and not is_traceable_wrapper_subclass(tensor)
        and not is_wrapped_by_functorch(tensor)
    )


class NoTally(Tally):
    """Counts nothing, which is faster: the products of a host are of no interest."""

    def add(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Does nothing."""


@cache
def is_masked(func: OpOverload) -> bool:
    """Returns whether an argument of an operator names the results that are needed."""
    return any(each.name == "output_mask" for each in schema_of(func).arguments)


@cache
def only_views(func: OpOverload) -> bool:
    """Returns whether an operator only makes a view of its operand, and so reads nothing."""
    aliases = (each.alias_info for each in schema_of(func).returns)
    return any(alias is not None and not alias.is_write for alias in aliases)
