"""Identity: digests of a workload's structure, code, options and flags. Equal ones make measurements comparable.

Code and options are found as facts: texts that are the same in every process. The guard's walk finds the objects. Of
the user's code, the bytecode is recorded, without docstrings; of what an installed package defines, the name and the
package's version. Plain values (numbers, strings, flags, containers of these, shapes of tensors and arrays) are
recorded for modules, objects of the user's classes, and configuration objects of any class. Values of tensors are never
recorded, and of a long container only the length. State that a step changes is found by looking twice.
"""

import hashlib
import platform
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

from autofit.core.environment import UPDATE, UPDATE_FN, Environment
from autofit.devices.base import Device
from autofit.guard.object_state import SIMPLE, Piece, in_full
from autofit.guard.state_walk import Walk, Whereabouts
from autofit.guard.walk_rules import CONTAINERS, Origin, entries, origin_of, unwrapped
from autofit.workloads.batch_algebra import describe
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import COLLATED, SAMPLES
from autofit.workloads.workload import Workload, names_of

MOST_ITEMS = 1000
"""Maximum number of items of a container. A longer one is taken as data and represented by its length."""
_MOST_LETTERS = 2**20
"""Maximum length of a string. A longer one is taken as data too."""
_HAS_DOCSTRING = 0x4000000  # a flag of code since Python 3.14
_OF_A_MODULE = frozenset(vars(nn.Module())) - {"_modules"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_COMPILED = re.compile(r"\._torchdynamo(?!\w*_orig_callable)\w*$")
"""Attributes that torch.compile sets on functions and modules: object ids and compiled code."""
_MANGLED = re.compile(r"___torch_mangle_\d+\.")
"""TorchScript's counter of classes of one name in this process."""
_SETS, _DATA = (set, frozenset), (DataLoader, Dataset, Sampler)
_ENTERED = (FunctionType, type, nn.Module, *_DATA)
_OPERATORS = (np.ufunc, type(torch.ops.aten.relu), type(torch.ops.aten.relu.default))


def signature(model: nn.Module, structure: str, loss: str) -> str:
    """Returns "model-data": short digests of the model's structure, and of the batch structure with the loss.

    Values are not included, so a model keeps its signature while it trains.
    """
    return f"{model_signature(model)}-{digest([structure, loss])}"


def model_signature(model: nn.Module) -> str:
    """Returns a short digest of the names, classes, shapes and dtypes of a model's modules and parameters."""
    modules = [f"{name}:{type(module).__qualname__}" for name, module in model.named_modules()]
    return digest(modules + [f"{n}:{tuple(p.shape)}:{p.dtype}:{p.requires_grad}" for n, p in model.named_parameters()])


class Fact(NamedTuple):
    """One recorded fact: its kind, "code" or "attributes", and the text that is compared."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Reached:
    """The facts that a workload reaches, by the name of what they are about.

    Attributes:
        step: those of the model, loss or step function, and optimizer recipe.
        data: those of the data set, samplers, collate function and worst case.
    """

    step: Mapping[str, Fact]
    data: Mapping[str, Fact]

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Returns what a workload reaches now. Takes milliseconds and changes nothing."""
        names = ("model", "loss_fn", "step_fn", "update_fn", "optimizer")
        step = reach(**{name: getattr(workload, name) for name in names})
        parts = ("dataset", "collate_fn", "sampler", "batch_sampler") if isinstance(workload.loader, DataLoader) else ()
        data = {name: getattr(workload.loader, name) for name in parts} or {"dataset": workload.loader}
        try:
            length: int | None = len(data["dataset"])
        except Exception:  # noqa: BLE001  # the user's method may raise any exception
            length = None
        return cls(step, reach(**data, length=length, worst_case=workload.worst_case))

    def digests(self, others: Sequence[Self]) -> dict[str, str]:
        """Returns digests of the facts that are equal in all `others`. State that steps change is left out."""
        step, data = self.step, self.data
        for other in others:
            step, data = dict(step.items() & other.step.items()), dict(data.items() & other.data.items())
        return {
            "code": digest(lines(step, "code")),
            "attributes": digest(lines(step, "attributes")),
            "data": digest([*lines(data, "code"), *lines(data, "attributes")]),
        }


def settings(
    workload: Workload,
    optimizer: torch.optim.Optimizer | None,
    device_type: str,
    source: BatchSource,
    others: Sequence[Reached] = (),
) -> dict[str, str]:
    """Returns other settings that affect measurements, as names and short digests; `others` are for `digests`."""
    found = {
        "mode": workload.mode,
        "max_grad_norm": str(workload.max_grad_norm),
        **Reached.of(workload).digests(others),
        "worst_sample": digest([describe([source.worst(source.small_size)])]),
        "flags": digest(_flags(device_type)),
    }
    if workload.update_fn is not None:
        found[UPDATE] = UPDATE_FN
    if not source.has_rows:
        found[SAMPLES] = COLLATED
    if optimizer is not None:
        found["optimizer"] = names_of(optimizer)
        found["optimizer_options"] = digest(list(_options(optimizer)))
    return found


def autofit_version() -> str:
    """Returns the version of the installed distribution, or "source"."""
    try:
        return version("torch-autofit")
    except PackageNotFoundError:
        return "source"


def versions_of(device: Device | None) -> dict[str, str]:
    """Returns the versions of Python, torch, autofit and, if given, of what a device needs."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "autofit": autofit_version()}
    return found if device is None else found | device.versions()


def digest(lines: Sequence[str]) -> str:
    """Returns 8 hexadecimal digits of a hash of `lines`."""
    return hashlib.sha256("\n".join(lines).encode(errors="backslashreplace")).hexdigest()[:8]


def _options(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yields the options of each group, except those that a schedule changes and measurements do not depend on."""
    for group in optimizer.param_groups:
        cyclic = {"momentum", "betas"} if {"base_momentum", "max_momentum"} & group.keys() else set()
        for name in sorted(group.keys() - cyclic - {"params", "lr", "initial_lr"}):
            yield f"{name}={plain(group[name]) or type(group[name]).__qualname__}"
        yield f"of {len(group['params'])} parameters"


def _flags(device_type: str) -> list[str]:
    return [
        f"matmul={torch.backends.cuda.matmul.fp32_precision}",
        f"conv={torch.backends.cudnn.conv.fp32_precision}",  # type: ignore[attr-defined]  # torch has no type for it
        f"benchmark={torch.backends.cudnn.benchmark}",
        f"deterministic={torch.backends.cudnn.deterministic},{torch.are_deterministic_algorithms_enabled()}",
        f"autocast={torch.is_autocast_enabled(device_type)},{torch.get_autocast_dtype(device_type)}",
        f"dtype={torch.get_default_dtype()}",
    ]


def environment_of(
    workload: Workload,
    device: Device,
    source: BatchSource,
    loss: LossRule,
    optimizer: torch.optim.Optimizer | None,
    looks: Sequence[Reached] = (),
    *,
    present: bool = True,
) -> Environment:
    """Returns the environment, which decides whether measurements may be compared.

    Structure and code of the model, the options of the optimizer except its learning rate, the worst batch and torch's
    flags are included; weights are not. Threads and driver versions are included if the device is `present`. `looks`
    are what the workload reached before any step and after some steps.
    """
    return Environment(
        workload=signature(workload.model, source.structure(), loss.name),
        device_type=device.type,
        device_name=device.name(),
        capacity_bytes=device.capacity_bytes(),
        threads=torch.get_num_threads() if present else None,
        versions=versions_of(device if present else None),
        settings=settings(workload, optimizer, device.type, source, looks),
    )


def reach(**roots: object) -> dict[str, Fact]:
    """Returns the facts that are reachable from the named objects. Changes and iterates nothing of the user's."""
    walk = _ReachWalk()
    for name, root in roots.items():
        walk.look(name, root)
    return walk.facts


def lines(found: Mapping[str, Fact], kind: str) -> list[str]:
    """Returns the facts of a kind, one per line."""
    return [f"{name}={fact.text}" for name, fact in sorted(found.items()) if fact.kind == kind]


class _ReachWalk(Walk):
    """Records texts instead of state."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, Fact] = {}

    def _add(self, piece: Piece, place: Whereabouts) -> None:
        """Records no state."""

    def _visit(self, name: str, found: Any, place: Whereabouts) -> None:
        is_hash = type(found) is int and name.rstrip("_").endswith("hash")  # differs between processes
        if found is None or is_hash or ("_torchdynamo" in name and _COMPILED.search(name)):
            return
        try:
            text = plain(found)
            fact = described(found) if text is None else Fact("attributes", text)
        except Exception:  # noqa: BLE001  # a user's object may raise any exception when it is inspected
            fact, text = Fact("attributes", type(found).__qualname__), ""
        known = self.facts.get(name)  # two methods may have one name, such as the getter and setter of a property
        self.facts[name] = fact if known is None else Fact(known.kind, f"{known.text}; {fact.text}")
        if text is not None:
            return
        if isinstance(found, torch.optim.Optimizer):  # training changes its attributes; its options are recorded apart
            self._todo.append((f"{name}.class", type(found), place))
        elif (inner := wrapped_function(found)) is not None:
            self._todo.append((f"{name}.__wrapped__", inner, place))
        elif _is_entered(found):
            super()._visit(name, found, place)

    def _push_attribute(self, name: str, key: str, value: Any, owner: object, place: Whereabouts) -> None:
        if key in _OF_A_MODULE and isinstance(owner, nn.Module):
            if key in _HOOKS and value:  # numbered, since their keys are counted in each process
                self._todo += [(f"{name}.hook[{key}, {at}]", hook, place) for at, hook in enumerate(value.values())]
        elif not are_drawn_positions(owner, value):
            super()._push_attribute(name, key, value, owner, place)


def _is_entered(found: object) -> bool:
    """Returns whether what an object holds belongs to the workload's identity."""
    if isinstance(found, _ENTERED) or is_configuration(found) or unwrapped(found):
        return True
    return origin_of(type(found)) is Origin.USER or (isinstance(found, CONTAINERS) and not isinstance(found, _SETS))


def is_configuration(found: object) -> bool:
    """Returns whether an object is a record of plain settings, of any class."""
    kind = type(found)
    by_name = kind.__name__.endswith("Config") and hasattr(kind, "to_dict")
    return isinstance(found, (SimpleNamespace, Namespace)) or is_dataclass(kind) or by_name


def are_drawn_positions(owner: object, value: object) -> bool:
    """Returns whether a data set or sampler of torch holds positions, which may be drawn anew in another run."""
    if not isinstance(owner, _DATA) or origin_of(type(owner)) is not Origin.TORCH:
        return False
    return isinstance(value, (list, tuple, range)) and all(isinstance(each, int) for each in value[:MOST_ITEMS])


def wrapped_function(found: object) -> object:
    """Returns the function inside an object of numpy or torch that is known to hold one, else None."""
    if isinstance(found, np.vectorize):
        return found.pyfunc
    return getattr(found, "_init_fn", None) if type(found).__module__.startswith("torch._library") else None


def named(module_name: str | None, name: str = "") -> str:
    """Returns the name of an object of a package, with the package's version if it has one."""
    version = getattr(sys.modules.get((module_name or "").partition(".")[0]), "__version__", "")
    return f"{module_name}.{name} {version if isinstance(version, str) else ''}"


def described(found: Any) -> Fact:
    """Returns the fact about an object that is not plain."""
    kind = type(found)
    if isinstance(found, FunctionType) and origin_of(found) is Origin.USER:
        return Fact("code", code_text(found.__code__))
    if isinstance(found, type):
        bases = [base for base in found.__mro__ if origin_of(base) is not Origin.USER and base is not object]
        return Fact("code", ", ".join(named(base.__module__, base.__qualname__) for base in bases))
    if isinstance(found, _SETS):
        return Fact("attributes", str(sorted(getattr(item, "__qualname__", type(item).__qualname__) for item in found)))
    if isinstance(found, CONTAINERS):
        return Fact("attributes", f"{kind.__name__} of {len(entries(found))}")
    if isinstance(found, ModuleType):
        return Fact("code", named(found.__name__))
    if isinstance(found, torch.jit.ScriptModule):
        return Fact("code", _MANGLED.sub("", "".join(str(getattr(each, "code", "")) for each in found.modules())))
    if isinstance(found, (FunctionType, BuiltinFunctionType)):
        return Fact("code", named(found.__module__, found.__qualname__))
    return Fact(
        "code", named(kind.__module__, kind.__qualname__) + (str(found) if isinstance(found, _OPERATORS) else "")
    )


def plain(found: Any) -> str | None:
    """Returns the text of a plain value, or of a container of such values and tuples of them. None for other objects.

    The text of a set or mapping does not depend on its order. That of a container with more than `MOST_ITEMS` items is
    its length.
    """
    if (text := _leaf(found)) is not None or not isinstance(found, CONTAINERS):
        return text
    items = list(dict.items(found)) if isinstance(found, dict) else list(entries(found))
    if len(items) > MOST_ITEMS:
        return f"{type(found).__name__} of {len(items)}"
    texts = [_joined(item) if type(item) is tuple else _leaf(item) for item in items]
    known = [text for text in texts if text is not None]
    if len(known) < len(texts):
        return None
    return f"{type(found).__name__}({', '.join(sorted(known) if isinstance(found, (dict, *_SETS)) else known)})"


def _joined(items: tuple[Any, ...]) -> str | None:
    texts = [_leaf(each) for each in items]
    known = [text for text in texts if text is not None]
    return f"({', '.join(known)})" if len(known) == len(texts) else None


def _leaf(found: Any) -> str | None:
    """Returns the text of a plain value that is not a container. None for any other object."""
    kind = type(found)
    if kind in SIMPLE:
        is_long = kind in (str, bytes) and len(found) > _MOST_LETTERS
        return f"{kind.__name__} of {len(found)}" if is_long else in_full(found)
    if issubclass(kind, (torch.Tensor, np.ndarray)):
        return f"{kind.__name__}{tuple(found.shape)}{found.dtype}"
    if issubclass(kind, Enum):
        return f"{kind.__qualname__}.{found.name}"
    if issubclass(kind, (PurePath, re.Pattern, np.generic)):
        return f"{kind.__name__} {getattr(found, 'pattern', found)}"
    base = next((base for base in (int, float, str, bytes) if issubclass(kind, base)), None)
    return None if base is None else f"{kind.__qualname__} {base.__repr__(found)}"  # whatever the class overrides


def code_text(code: CodeType) -> str:
    """Returns a text of compiled code that is the same in every process and independent of its position in the file."""
    return f"{code.co_code.hex()}{code.co_names}{[_constant(value) for value in _constants(code)]}"


def _constants(code: CodeType) -> tuple[object, ...]:
    """Returns the constants of code as if it had no docstring."""
    if sys.version_info >= (3, 14):
        return code.co_consts[1:] if code.co_flags & _HAS_DOCSTRING else code.co_consts
    # Before 3.14, the first constant of a named function is its docstring, or None.
    documented = not code.co_name.startswith("<") and bool(code.co_consts) and isinstance(code.co_consts[0], str)
    return (None, *code.co_consts[1:]) if documented else code.co_consts


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return code_text(value)
    if isinstance(value, (tuple, frozenset)):
        texts = [_constant(each) for each in value]
        return f"{type(value).__name__}{texts if isinstance(value, tuple) else sorted(texts)}"  # a set has no order
    return repr(value)
