"""LowBitAdam: a library's Adam with low-bit states, which makes the updates of the user's Adam or AdamW of torch.

The user's optimizer stays the object in use. Its groups stay as they are, so that a scheduler's changes take effect.
Its state holds what the library makes of it until the context is left, and then torch's float32 moments again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Adam, Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autofit.strategies.torch_optimizers import (
    MARKS,
    TAKEN_OVER,
    grouped_parameters,
    has_own_step,
    is_scheduled,
    placed_counter,
    watched_step,
)
from autofit.strategies.undo import Undo
from autofit.workloads.step import Draft

SMALLEST = 4096
"""Elements of the smallest parameter whose states are quantized, in both libraries."""
BLOCK = 256
"""Elements that share one scale, in both libraries."""

State = dict[str, Any]
"""What an optimizer keeps for one parameter."""
Update = Callable[[dict[str, Any], Optimizer], None]
"""Updates the parameters of one group of the user's optimizer."""


class LowBitAdam(ABC):
    """A library that updates parameters of the user's optimizer.

    The strategy calls `lack` and `refusal` when it is asked what it offers, and the others while it is applied.

    Attributes:
        library: name of the library.
        compiled: whether the update is compiled when it first runs.
        rounds: whether the update rounds parameters in bfloat16 stochastically.
    """

    library: ClassVar[str]
    compiled: ClassVar[bool] = False
    rounds: ClassVar[bool] = False

    @abstractmethod
    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        """Returns why the library cannot be used on a device, or None. Capabilities that are None are not checked."""

    @abstractmethod
    def refusal(self, optimizer: Optimizer) -> str | None:
        """Returns which setting of an Adam or AdamW of torch the library does not have, or None."""

    @abstractmethod
    def quantizes(self, parameter: torch.Tensor) -> bool:
        """Returns whether the states of a parameter are quantized."""

    @abstractmethod
    def is_packed(self, parameter: torch.Tensor, state: State) -> bool:
        """Returns whether a state has the library's form."""

    @abstractmethod
    def packed(self, parameter: torch.Tensor, state: State) -> State:
        """Returns the library's form of a state of torch."""

    @abstractmethod
    def unpacked(self, parameter: torch.Tensor, state: State) -> State:
        """Returns torch's form of a state of the library."""

    @abstractmethod
    def update(self) -> Update:
        """Returns the library's update."""


def refusal(optimizer: Optimizer, model: nn.Module) -> str | None:
    """Returns why no library can update the parameters of `optimizer`, or None."""
    name = type(optimizer).__name__
    if not isinstance(optimizer, Adam) or has_own_step(optimizer):
        return f"found {name}; the libraries replace only Adam and AdamW of torch.optim"
    for option in ("amsgrad", "maximize", "capturable", "differentiable"):
        if any(group.get(option) for group in optimizer.param_groups):
            return f"the libraries have no {option}"
    if any(isinstance(beta, torch.Tensor) for group in optimizer.param_groups for beta in group["betas"]):
        return "the libraries expect betas that are numbers"
    if any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse for m in model.modules()):
        return "the libraries do not support the sparse gradients of this model's embeddings"
    return watched_step(optimizer) or _unusual_parameters(optimizer)


def _unusual_parameters(optimizer: Optimizer) -> str | None:
    for _, parameter in grouped_parameters(optimizer):
        if is_traceable_wrapper_subclass(parameter):
            return "it holds sharded or quantized parameters"
        if parameter.dtype not in (torch.float32, torch.bfloat16):
            return f"it holds a parameter of {parameter.dtype}; the libraries expect float32 or bfloat16"
        if not parameter.is_contiguous():
            return "it holds a parameter that is not contiguous, such as one in channels_last"
    return None


@contextmanager
def updated_by(library: LowBitAdam, optimizer: Optimizer, draft: Draft) -> Iterator[None]:
    """Has `library` make the updates of `optimizer` until the context is left.

    A state that is there already is quantized at once. The tensors that held it are empty meanwhile, and afterwards
    have the trained values. Until the first step, their values are kept in main memory, so that nothing is lost without
    one.
    """
    states = _States(library, optimizer)
    with Undo() as undo:
        for name in MARKS:  # a fused step would divide by the scale of a gradient scaler itself
            undo.replace(vars(optimizer), name, False)
        undo.callback(states.unpack)
        states.pack(exactly=True)
        step = MethodType(_step_of(states, scheduled=is_scheduled(optimizer)), optimizer)
        undo.replace(vars(optimizer), "step", step)
        undo.enter_context(cleared_by_a_step(states.exact, draft))
        yield


@contextmanager
def cleared_by_a_step(exact: dict[torch.Tensor, Any], draft: Draft) -> Iterator[None]:
    """Has the first forward pass of a step clear `exact`, until the context is left."""
    autocast = draft.autocast

    def cleared() -> AbstractContextManager[Any]:
        if draft.stepping:
            exact.clear()
        return autocast()

    with Undo() as undo:
        if exact:
            undo.callback(setattr, draft, "autocast", autocast)
            draft.autocast = cleared
        yield


class _States:
    """The states of an optimizer whose updates a library makes.

    Attributes:
        library: the library.
        optimizer: the user's optimizer.
        before: entries of each state when the library took over.
        exact: by parameter, the state that was quantized without a step since, and the values that it had.
    """

    __slots__ = ("before", "exact", "library", "optimizer")

    def __init__(self, library: LowBitAdam, optimizer: Optimizer) -> None:
        self.library, self.optimizer = library, optimizer
        self.before: dict[torch.Tensor, State] = {p: dict(state) for p, state in optimizer.state.items()}
        self.exact: dict[torch.Tensor, tuple[State, State]] = {}

    def pack(self, *, exactly: bool = False) -> None:
        """Gives each state the library's form, parameter by parameter, and empties the tensors `before` it replaces.

        Tensors that were loaded meanwhile may also belong to the user's checkpoint, and are left alone.
        """
        for _, parameter in grouped_parameters(self.optimizer):
            state = self.optimizer.state.get(parameter)
            if not state or self.library.is_packed(parameter, state):
                continue
            packed = self.library.packed(parameter, state)
            state.clear()
            state.update(packed)
            kept, values = {id(value) for value in packed.values()}, {}
            for name, value in self.before.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and id(value) not in kept:
                    values[name] = value.data.cpu() if exactly else None
                    value.data = torch.empty(0, dtype=value.dtype, device=value.device)
            if exactly:
                self.exact[parameter] = (state, values)

    def unpack(self) -> None:
        """Gives each state torch's form, parameter by parameter, in the tensors that held it before."""
        for group, parameter in grouped_parameters(self.optimizer):
            state, before = self.optimizer.state.get(parameter), self.before.get(parameter, {})
            if not state or not self.library.is_packed(parameter, state):
                continue
            quantized, values = self.exact.get(parameter, ({}, {}))
            if quantized is state:
                unpacked = {**before, **{name: value.to(before[name].device) for name, value in values.items()}}
            else:
                unpacked = self.library.unpacked(parameter, state)
                fused = bool(group.get("fused"))
                unpacked["step"] = placed_counter(unpacked["step"], group, parameter, fused=fused)
            state.clear()
            for name, value in unpacked.items():
                state[name] = _in_place(before.get(name), value)


def _in_place(earlier: Any, value: Any) -> Any:
    """Returns the tensor that a state held before, with the data of `value`; or `value` if it held none."""
    if not isinstance(earlier, torch.Tensor) or is_traceable_wrapper_subclass(earlier) or earlier is value:
        return value
    earlier.data = value.data
    return earlier


def _step_of(states: _States, *, scheduled: bool) -> Callable[..., Any]:
    """Returns the function that is the step of an optimizer whose updates a library makes."""
    update = states.library.update()

    def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        states.exact.clear()
        states.pack()  # what was loaded since the last step
        for group in optimizer.param_groups:
            update(group, optimizer)
        if scheduled:
            optimizer._opt_called = True  # a scheduler asks whether a step came before its own
        return loss

    setattr(step, TAKEN_OVER, states.library.library)
    if scheduled:
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # by this a scheduler knows a step that it counts
    return step
