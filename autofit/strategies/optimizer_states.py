"""Optimizer states: the moments of Adam in 8 bits, by torchao or bitsandbytes."""

import importlib.util
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from types import MethodType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.units import format_bytes
from autofit.core.wording import install_command
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.compilation import missing_tool
from autofit.strategies.optimizer_implementation import switches
from autofit.strategies.optimizer_in_backward import updates_in_backward
from autofit.strategies.torch_optimizers import (
    MARKS,
    grouped_parameters,
    has_own_step,
    is_scheduled,
    placed_counter,
    watched_step,
)
from autofit.strategies.undo import Undo
from autofit.torch_internals import has_kernel, is_traceable_wrapper_subclass
from autofit.workloads.step import Draft

KNOB = "optimizer_states"
SMALLEST, BLOCK = 4096, 256
"""Elements of the smallest parameter whose states are quantized, and elements that share a scale, in both libraries."""
SMALLEST_SHARE = 0.05
"""Minimum memory that is freed, as a share of the memory budget. The next larger micro batch rarely needs less."""
FREED_BYTES = 6
"""Bytes that each element of a parameter needs less: two moments of one byte instead of four."""
LEAST_WARM_UP_S = 3.0
"""Least plausible seconds in which the update is compiled; see `autofit.strategies.compilation`."""

State = dict[str, Any]
"""What an optimizer keeps for one parameter."""


class Library(ABC):
    """An Adam with 8-bit states.

    Attributes:
        package: the package of the library, which is also the name of its extra.
        options: options with which its optimizer is made.
        compiled: whether the update is compiled when it first runs.
    """

    package: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}
    compiled: ClassVar[bool] = False

    @abstractmethod
    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        """Returns why the library cannot be used on a device, or None. Capabilities that are None are not checked."""

    @abstractmethod
    def refusal(self, group: dict[str, Any]) -> str | None:
        """Returns which setting of a group the library does not have, or None."""

    @abstractmethod
    def quantizes(self, parameter: torch.Tensor) -> bool:
        """Returns whether the moments of a parameter are kept in 8 bits."""

    @abstractmethod
    def holds(self, state: State, parameter: torch.Tensor) -> bool:
        """Returns whether a state has the library's form."""

    @abstractmethod
    def packed(self, state: State, parameter: torch.Tensor) -> State:
        """Returns the library's state for one of torch's Adam."""

    @abstractmethod
    def unpacked(self, state: State, parameter: torch.Tensor) -> State:
        """Returns the state of torch's Adam for one of the library."""

    def rate(self, rate: Any) -> Any:
        """Returns a learning rate as the library expects it."""
        return float(rate)

    @abstractmethod
    def adopt(self, state: State) -> None:
        """Gives a state of the library that torch has loaded the library's types."""


class _Torchao(Library):
    """One compiled kernel for each shape of a parameter. The states have torch's names."""

    package = "torchao"
    options: ClassVar[dict[str, Any]] = {"bf16_stochastic_round": True}
    compiled = True

    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        if capabilities is not None and "compiled code" not in capabilities:
            return f"torchao compiles its update, and torch.compile generates no code for this {device_type} device"
        return missing_tool()

    def refusal(self, group: dict[str, Any]) -> str | None:
        if "max_momentum" in group or "max_betas" in group:
            return "a scheduler changes beta1 in every step, and torchao compiles its update anew for each value"
        return None

    def quantizes(self, parameter: torch.Tensor) -> bool:
        return parameter.numel() >= SMALLEST and parameter.numel() % BLOCK == 0

    def holds(self, state: State, parameter: torch.Tensor) -> bool:
        return not self.quantizes(parameter) or is_traceable_wrapper_subclass(state["exp_avg"])

    def rate(self, rate: Any) -> Any:
        return torch.as_tensor(rate)  # a number would be compiled into the kernel

    def packed(self, state: State, parameter: torch.Tensor) -> State:
        from torchao.optim.subclass_8bit import OptimState8bit  # noqa: PLC0415  # only if it is used

        def quantized(name: str) -> Any:
            made = OptimState8bit.zeros(parameter.shape, name == "exp_avg", BLOCK, parameter.device)
            return made.copy_(state[name].float())

        return {**state, **{name: quantized(name) for name in ("exp_avg", "exp_avg_sq")}}

    def unpacked(self, state: State, parameter: torch.Tensor) -> State:
        def full(value: Any) -> Any:
            quantized = getattr(value, "dequantize", None) if is_traceable_wrapper_subclass(value) else None
            return value if quantized is None else quantized()

        return {name: full(value) for name, value in state.items()}

    def adopt(self, state: State) -> None:
        """Changes nothing: torch keeps the types of torchao's states."""


class _Bitsandbytes(Library):
    """Kernels of the library. The states have names of their own."""

    package = "bitsandbytes"
    moments: ClassVar[dict[str, str]] = {"state1": "exp_avg", "state2": "exp_avg_sq"}

    def lack(self, device_type: str, capabilities: frozenset[str] | None) -> str | None:
        operator = "bitsandbytes::optimizer_update_8bit_blockwise"
        if has_kernel(operator, device_type.upper()):
            return None
        return f"bitsandbytes has no 8-bit update for this {device_type} device"

    def refusal(self, group: dict[str, Any]) -> str | None:
        if group["weight_decay"] and not group["decoupled_weight_decay"]:
            return "bitsandbytes decays weights as AdamW does, and not through the gradient as this optimizer"
        return None

    def quantizes(self, parameter: torch.Tensor) -> bool:
        return parameter.numel() >= SMALLEST

    def holds(self, state: State, parameter: torch.Tensor) -> bool:
        return "state1" in state

    def packed(self, state: State, parameter: torch.Tensor) -> State:
        made: State = {"step": int(state["step"])}
        create = import_module("bitsandbytes.functional").create_dynamic_map
        for number, (name, of_torch) in enumerate(self.moments.items(), start=1):
            made[name] = state[of_torch]
            if self.quantizes(parameter):
                values = create(signed=number == 1).to(parameter.device)
                codes, scales = torch.ops.bitsandbytes.quantize_blockwise(state[of_torch], values, BLOCK)
                made |= {name: codes, f"qmap{number}": values, f"absmax{number}": scales}
        return made

    def unpacked(self, state: State, parameter: torch.Tensor) -> State:
        made: State = {"step": torch.tensor(float(state["step"]))}
        for number, (name, of_torch) in enumerate(self.moments.items(), start=1):
            made[of_torch] = state[name]
            if self.quantizes(parameter):
                scales, values = state[f"absmax{number}"], state[f"qmap{number}"]
                arguments = (state[name], scales, values, BLOCK, torch.float32)
                made[of_torch] = torch.ops.bitsandbytes.dequantize_blockwise(*arguments)
        return made

    def adopt(self, state: State) -> None:
        if "absmax1" in state:  # torch loads the codes as float32 numbers
            state.update({name: state[name].to(torch.uint8) for name in self.moments})


LIBRARIES: dict[str, Library] = {"torchao-8bit": _Torchao(), "bitsandbytes-8bit": _Bitsandbytes()}


class OptimizerStates(Strategy):
    """The moments of Adam or AdamW in 8 bits, in blocks that share a scale (Dettmers et al., arXiv:2110.02861).

    An optimizer of a library makes the updates, with the groups and the states of the user's optimizer, which stays the
    object in use. Moments that exist already are quantized in the first step, and those of small parameters stay
    float32. While the step is open, `state_dict` of the user's optimizer holds the library's states. After the step is
    closed, it holds float32 moments of torch, which need eight bytes for each element of a parameter.
    """

    name = "optimizer_states"
    about = "keeps the moments of Adam in 8 bits"
    cost = "digits of the moments, a slower update, and seconds of compiling with torchao"
    effect = "changes the result"
    phase = Phase.OPTIMIZER
    owns = (KNOB,)

    def offer(self, facts: Facts) -> Offer:
        """Returns the libraries that can make the updates of this optimizer on this device."""
        if facts.optimizer is None:
            return self.refuse("inference has no updates")
        if facts.numerics != "any":
            return self.refuse(
                f"numerics={facts.numerics!r} keeps the optimizer's states; numerics='any' allows 8-bit states"
            )
        if (reason := _unusual(facts.optimizer, facts.model)) is not None:
            return self.refuse(reason)
        lacks = {value: _lack(library, facts, facts.optimizer) for value, library in LIBRARIES.items()}
        refused = tuple(Refusal(name=f"{KNOB}={value}", reason=why) for value, why in lacks.items() if why is not None)
        found = {value: library for value, library in LIBRARIES.items() if lacks[value] is None}
        if not found:
            return Offer(refused=refused)
        knob = Knob(
            name=KNOB,
            values=("default", *found),
            default="default",
            about="how the moments of the optimizer are kept",
            expected=(1.0, *(0.95 for _ in found)),
            growth=(1.0, *(1.0 for _ in found)),  # states do not grow with the batch
            warm_up_s=(0.0, *(LEAST_WARM_UP_S if library.compiled else 0.0 for library in found.values())),
            frees_bytes=(0, *(_freed_bytes(library, facts.optimizer) for library in found.values())),
        )
        return Offer((knob,), refused)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Has a library make the updates, until the context is left.

        Raises:
            SpaceError: the library is missing, or cannot make the updates of this optimizer.
        """
        value = plan.values.get(KNOB, "default")
        if value == "default":
            yield
            return
        library = LIBRARIES.get(value) if isinstance(value, str) else None
        if library is None:
            raise unknown_value(KNOB, value, f"default, {', '.join(LIBRARIES)}")
        optimizer = draft.optimizer
        reason = "inference has no updates"
        if optimizer is not None:
            reason = _unusual(optimizer, draft.model) or _unusable(library, optimizer, draft.device.type, None) or ""
        if optimizer is None or reason:
            raise SpaceError(
                f"{KNOB}={value} cannot be applied: {reason}; expected an Adam or AdamW of torch.optim, and the "
                "library. Tune again with this optimizer."
            )
        with Undo() as undo:
            undo.callback(setattr, draft, "compiled", draft.compiled)
            draft.compiled = draft.compiled or library.compiled
            for name in MARKS:  # a fused step would divide by the scale of a gradient scaler itself
                undo.replace(vars(optimizer), name, False)
            before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
            undo.callback(_unpack, library, optimizer, before)
            autocast = draft.autocast
            undo.callback(setattr, draft, "autocast", autocast)

            def packing() -> AbstractContextManager[Any]:
                if draft.stepping:  # without a step, the moments keep all digits
                    _pack(library, optimizer, before)
                return autocast()

            draft.autocast = packing
            step = _step_of(library, is_scheduled(optimizer))
            undo.replace(vars(optimizer), "step", MethodType(step, optimizer))
            yield

    def conflict(self, plan: Plan) -> str | None:
        """Returns which other way to update `plan` has beside that of a library, or None."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        if switches(plan):
            return "the update is either one of torch.optim's implementations or that of a library for 8-bit states"
        return "a library updates 8-bit states after the backward pass" if updates_in_backward(plan) else None

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that a library makes the updates, if the plan has 8-bit states."""
        if plan.values.get(KNOB, "default") == "default":
            return None
        return "the update of 8-bit states has kernels of its own; a probe measures their memory"


def _unusual(optimizer: Optimizer, model: nn.Module) -> str | None:
    """Returns why no library can update the parameters of `optimizer`, or None."""
    if not isinstance(optimizer, Adam) or has_own_step(optimizer):
        return f"found {type(optimizer).__name__}; the libraries replace only Adam and AdamW of torch.optim"
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


def _unusable(
    library: Library, optimizer: Optimizer, device_type: str, capabilities: frozenset[str] | None
) -> str | None:
    """Returns why a library cannot make the updates of an optimizer on a device, or None."""
    reasons = (library.refusal(group) for group in optimizer.param_groups)
    if (reason := next(filter(None, reasons), _missing(library.package))) is not None:
        return reason
    try:
        _optimizers(library.package)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        return f"{library.package} cannot be imported ({error}): {install_command(library.package)}"
    return library.lack(device_type, capabilities)


def _lack(library: Library, facts: Facts, optimizer: Optimizer) -> str | None:
    """Returns why a library is not offered, or None."""
    reason = _unusable(library, optimizer, facts.device_type, facts.capabilities)
    freed, budget = _freed_bytes(library, optimizer), facts.memory_budget_bytes
    if reason is not None:
        return reason
    if not freed:
        return f"{library.package} quantizes no states here: it leaves those of small parameters in float32"
    if budget is not None and freed < SMALLEST_SHARE * budget:
        return (
            f"8-bit states free {format_bytes(freed)}, less than {SMALLEST_SHARE:.0%} of the memory budget of "
            f"{format_bytes(budget)}: they hardly change what fits"
        )
    return None


def _freed_bytes(library: Library, optimizer: Optimizer) -> int:
    """Returns the bytes that 8-bit states need less than float32 states."""
    sizes = (p.numel() for _, p in grouped_parameters(optimizer) if p.requires_grad and library.quantizes(p))
    return FREED_BYTES * sum(sizes)


def _missing(library: str) -> str | None:
    """Returns that a library is not installed and how to install it, or None. Its extra has its name."""
    found = importlib.util.find_spec(library) is not None
    return None if found else f"{library} is not installed: {install_command(library)}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Hides the warnings and notes that an import makes, such as those on kernels for other devices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@cache
def _optimizers(package: str) -> Any:
    """Returns the module of a library's optimizers, imported without its notes on kernels for other devices."""
    with _quietly():
        return import_module(f"{package}.optim")


def _step_of(library: Library, scheduled: bool) -> Callable[..., Any]:
    """Returns the function that is the step of an optimizer whose updates a library makes."""
    made = _optimizers(library.package).AdamW8bit([torch.zeros(1)], **library.options)

    def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _pack(library, optimizer, {})  # what was loaded since the last step
        for group in optimizer.param_groups:
            made.is_adamw = bool(group["decoupled_weight_decay"])
            made.state, made.param_groups = optimizer.state, [{**group, "lr": library.rate(group["lr"])}]
            with warnings.catch_warnings():
                # torchao's states have no hash for the cache of torch.compile (torch 2.13, torchao 0.18).
                warnings.filterwarnings("ignore", message=".*_stable_hash_for_caching")
                warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 warns of its own imports
                made.step()
        if scheduled:
            optimizer._opt_called = True  # a scheduler asks whether a step came before its own
        return loss

    if scheduled:
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # by this a scheduler knows a step that it counts
    return step


def _pack(library: Library, optimizer: Optimizer, before: Mapping[torch.Tensor, State]) -> None:
    """Gives each state the library's form, parameter by parameter, and empties the tensors of `before`."""
    for _, parameter in grouped_parameters(optimizer):
        if not (state := optimizer.state.get(parameter)):
            continue
        library.adopt(state)
        if library.holds(state, parameter):
            continue
        packed = library.packed(state, parameter)
        state.clear()
        state.update(packed)
        kept = {id(value) for value in packed.values()}
        for value in before.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and id(value) not in kept:
                value.data = torch.empty(0, dtype=value.dtype, device=value.device)


def _unpack(library: Library, optimizer: Optimizer, before: Mapping[torch.Tensor, State]) -> None:
    """Gives each state torch's form, parameter by parameter, in the tensors of `before` where there are such."""
    for group, parameter in grouped_parameters(optimizer):
        if not (state := optimizer.state.get(parameter)):
            continue
        library.adopt(state)
        if not library.holds(state, parameter):
            continue
        unpacked = library.unpacked(state, parameter)
        unpacked["step"] = placed_counter(unpacked["step"], group, parameter, fused=bool(group.get("fused")))
        for name, value in unpacked.items():
            earlier = before.get(parameter, {}).get(name)
            if isinstance(earlier, torch.Tensor) and earlier is not value:
                earlier.data = value.data
                unpacked[name] = earlier
        state.clear()
        state.update(unpacked)
