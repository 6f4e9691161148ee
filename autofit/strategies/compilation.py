"""Compilation: torch.compile generates kernels for the whole model, or for each block and each region around them."""

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import nn

from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import Refusal
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.blocks import find_blocks, is_compiled
from autofit.strategies.compiled_regions import compile_loss, find_regions
from autofit.strategies.undo import Undo
from autofit.workloads.divided import inside
from autofit.workloads.step import Draft

KNOB = "compile"
OFF, MODEL, BLOCKS, TUNED, GRAPHS = "off", "default", "blocks", "max-autotune-no-cudagraphs", "reduce-overhead"
VALUES = (OFF, MODEL, BLOCKS, TUNED, GRAPHS)
MODES = (TUNED, GRAPHS)
"""Values that are also modes of torch.compile. The others use its default mode."""
NEEDED = {TUNED: "tuned kernels", GRAPHS: "cuda graphs"}
"""Capability of the device that a value needs beyond "compile"."""
LEAST_BLOCKS = 4
"""Minimum number of blocks that are compiled on their own. With fewer, little less is compiled than the whole model."""

LEAST_WARM_UP_S = {OFF: 0.0, MODEL: 3.0, BLOCKS: 0.8, TUNED: 15.0, GRAPHS: 3.0}
"""Least plausible seconds that a training spends on compiling. On 2 cores, torch 2.13 took 7 s for four layers; half of
this is assumed for a faster machine. Blocks alone took a quarter of the time of the whole model, here and on an H100;
tuned kernels for the products of those four layers were not ready there after 90 s."""
ACCELERATED_WARM_UP_S = {OFF: 0.0, MODEL: 7.0, BLOCKS: 2.0, TUNED: 30.0, GRAPHS: 8.0}
"""The same on an accelerator, a fifth of what was measured: on an H100, 9.7 to 14 s for blocks and 35 s for the whole
model, in a Llama of 12 layers and ConvNeXt-T; graphs were not ready after 36 s."""
CEILING = {OFF: 1.0, MODEL: 2.5, BLOCKS: 2.5, TUNED: 2.5, GRAPHS: 5.0}
"""Largest plausible speed-up on an accelerator: 1.5 times the median of 1.65 that timm's table has for 800 models on an
RTX 4090 (reference/strategy_tuners.md 7.1), and twice that for graphs, which also hide the time to launch kernels."""
HOST_CEILING = 2.0
"""Largest plausible speed-up on a host, whose products stay in the same library: compiling fuses the operators between
them."""
EXPECTED = {OFF: 1.0, MODEL: 1.35, BLOCKS: 1.3, TUNED: 1.35, GRAPHS: 1.35}
"""Expected speed-up on an accelerator: 1.15 to 1.27 in the training of large language models, 1.65 in the median of
timm's table (ibid.). On an H100, GPT-2 became 2.3 times as fast in bf16, and four layers 1.07 times in float32."""
HOST_EXPECTED = 0.95
"""Expected speed-up on a host: a small GPT on 2 cores became 25 % slower, other models a little faster."""

_ORIGINAL, _DISABLED = "_torchdynamo_orig_callable", "_torchdynamo_disable"
"""Attributes that torch.compile and torch.compiler.disable leave on a function. The second sets both."""


class Compilation(Strategy):
    """Compiles in place: the module objects, their hooks and the names in a state_dict stay the same.

    Beside the repeated blocks, `blocks` compiles what is outside them and the loss as regions of their own.

    The code is made when the step first runs, and again for each new shape, mode or autocast state. If batches differ
    in shape, torch.compile makes the sizes dynamic that it sees change; otherwise each shape gets code of its own.

    A model that its author has compiled stays as it is.
    """

    name = "compilation"
    about = "generates fused kernels for the model or its blocks with torch.compile"
    cost = "seconds to minutes of compiling at the start of a training"
    words: ClassVar = {
        f"{KNOB}={OFF}": "not compiled",
        f"{KNOB}={MODEL}": "compiled",
        f"{KNOB}={BLOCKS}": "compiled blocks",
        f"{KNOB}={TUNED}": "compiled with tuned kernels",
        f"{KNOB}={GRAPHS}": "compiled with CUDA graphs",
    }
    effect = "rounding"
    phase = Phase.COMPILATION
    owns = {KNOB: OFF}
    gated_in_proof = True

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob `compile` with the values that this device and this model can use."""
        if "compiled code" not in facts.capabilities:
            reason = f"torch.compile generates no code for this {facts.device_type} device; on CUDA, install triton"
            return self.refuse(reason, "device")
        if refusal := _refusal(facts.model) or missing_tool():
            return self.refuse(refusal)
        lacks = {value: why for value in VALUES if (why := _lack(value, facts)) is not None}
        of_device = {value for value, needed in NEEDED.items() if needed not in facts.capabilities}
        refused = tuple(
            Refusal(name=f"{KNOB}={value}", reason=why, origin="device" if value in of_device else "")
            for value, why in lacks.items()
        )
        values = tuple(value for value in VALUES if value not in lacks)
        accelerated = NEEDED[TUNED] in facts.capabilities
        knob = Knob(
            name=KNOB,
            values=values,
            default=OFF,
            about="what torch.compile compiles, or the mode in which it compiles the whole model",
            expected=tuple(EXPECTED[v] if accelerated or v == OFF else HOST_EXPECTED for v in values),
            warm_up_s=tuple((ACCELERATED_WARM_UP_S if accelerated else LEAST_WARM_UP_S)[v] for v in values),
            ceiling=tuple(CEILING[v] if accelerated or v == OFF else HOST_CEILING for v in values),
            usual=next((value for value in (BLOCKS, MODEL) if value in values and accelerated), None),
        )
        return Offer((knob,), refused)

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Compiles the model, or each of its blocks and regions, when they are next called.

        Raises:
            SpaceError: the value is unknown, the model is compiled already, or it has no repeated blocks.
        """
        value = plan.values[KNOB]
        if value == GRAPHS and draft.ranks is not None:
            raise unknown_value(KNOB, value, f"another value, since {_NO_GRAPHS}")
        targets = _targets(value, inside(draft.model))  # of a replicated model, what its wrapper calls
        calls = _CompiledCalls(value, draft.varies)
        with Undo() as undo:
            for target in targets:
                undo.replace(vars(target), "_compiled_call_impl", partial(calls.of_module(target), target))
            if value == BLOCKS:
                compile_loss(draft, calls.of_criterion, undo)
            undo.set(draft, "compiled", True)
            yield

    def untraceable(self, plan: Plan) -> str | None:
        """Returns that the compiler decides about memory, if the plan compiles."""
        if plan.values.get(KNOB, OFF) == OFF:
            return None
        return "torch.compile decides which tensors are kept in memory; a probe measures it"


def _targets(value: KnobValue, model: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the modules to compile. Raises what `Compilation.apply` says."""
    if value not in VALUES:
        raise unknown_value(KNOB, value, f"one of {', '.join(VALUES)}")
    if (reason := _refusal(model)) is not None:
        raise unknown_value(KNOB, value, f"{OFF}, since {reason}")
    if value != BLOCKS:
        return (model,)
    if not (blocks := find_blocks(model)):
        raise unknown_value(KNOB, value, f"another value, since {_NO_BLOCKS}")
    return (*blocks, *find_regions(model, blocks))


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls a module with its hooks, as `module(...)` does if it is not compiled.

    `nn.Module.compile` compiles the bound method instead, whose frame torch.compile skips, so that nothing of a
    `Sequential` or of another class of torch's own is compiled (torch 2.13).
    """
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch has no type for it


def _criterion_call(criterion: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a loss function. One of torch's own would not be compiled if it were given to torch.compile itself."""
    return criterion(*args, **kwargs)


_calls: dict[object, Callable[..., Any]] = {}
"""Copies of `_call`, by the kind of module. torch.compile keeps its code, up to a limit, with the function that it
compiled: blocks of one kind share that code, and blocks of many kinds do not exhaust one limit. A plan that is applied
again, as in a race, finds its code."""


class _CompiledCalls:
    """Compiles the calls of one plan, by a value of the knob, for batches that differ in shape or do not.

    The module or the loss function is the first argument of its compiled call.
    """

    def __init__(self, value: KnobValue, varies: bool) -> None:
        self.how: dict[str, Any] = {"mode": value if value in MODES else None, "dynamic": None if varies else False}
        self._made: dict[object, Callable[..., Any]] = {}

    def of_module(self, module: nn.Module) -> Callable[..., Any]:
        """Returns the call of a module, shared by those of its class with parameters of the same shapes and types."""
        parameters = tuple((name, p.shape, p.dtype) for name, p in module.named_parameters())
        return self._compiled(_call, (type(module), parameters))

    def of_criterion(self, criterion: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call of a loss function."""
        return self._compiled(_criterion_call, getattr(criterion, "__qualname__", type(criterion)))

    def _compiled(self, call: Callable[..., Any], kind: object) -> Callable[..., Any]:
        key = call, kind
        if key not in self._made:
            copied = _calls.setdefault(key, FunctionType(call.__code__.replace(), globals(), call.__name__))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 warns of its own imports
                self._made[key] = torch.compile(copied, **self.how)
        return self._made[key]


_NO_BLOCKS = "the model has no repeated blocks"
_NO_GRAPHS = "communication between ranks has not been tried in CUDA graphs"


def _lack(value: str, facts: Facts) -> str | None:
    """Returns why `value` is not offered, or None."""
    if value in NEEDED and NEEDED[value] not in facts.capabilities:
        if value == TUNED:
            return "on this device the compiler has no other kernels for products to choose from"
        return f"this {facts.device_type} device has no CUDA graphs"
    if value == GRAPHS and facts.ranks > 1:
        return _NO_GRAPHS
    if value in NEEDED and facts.varies:
        return "batches differ in shape, and each shape would be tuned or recorded anew"
    if value == BLOCKS and (count := len(find_blocks(facts.model))) < LEAST_BLOCKS:
        found = f"found {count} repeated blocks; with fewer than {LEAST_BLOCKS}, compiling them alone saves little"
        return found if count else _NO_BLOCKS
    return None


def _refusal(model: nn.Module) -> str | None:
    """Returns why the model must not be compiled, or None."""
    for name, module in model.named_modules():
        where = f"the module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            return f"{where} is TorchScript, which torch.compile does not compile"
        if is_compiled(module):
            return f"{where} is already compiled by its author, and stays as it is"
        bases = [base for base in type(module).__mro__ if base.__module__.partition(".")[0] != "torch"]
        held = (entry for attributes in map(vars, [module, *bases]) for entry in attributes.items())
        if (method := next((name for name, each in held if _is_decorated(each)), None)) is not None:
            return f"{method} of {where} is already compiled by its author, and stays as it is"
    return None


def _is_decorated(value: object) -> bool:
    """Returns whether a value is a function that was decorated with torch.compile."""
    return isinstance(value, FunctionType) and hasattr(value, _ORIGINAL) and not hasattr(value, _DISABLED)


def missing_tool() -> str | None:
    """Returns which tool for compiling is missing and how to get it, or None."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is not None:
        return None
    named = " (named by the variable CXX)" if os.environ.get("CXX") else ""
    return f"found no C++ compiler {compiler!r}{named}: install one, such as g++, for torch.compile"
