"""Modules that save more for their backward pass than a built-in function which computes the same."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from autofit.doctor.diagnosis import Finding, Place
from autofit.doctor.findings.base import Detector, at_peak, is_nothing
from autofit.doctor.observation import Observation
from autofit.doctor.what_if import Change, WhatIf, replaced
from autofit.torch_internals import storage_id

HEAVY_RATIO = 0.9
"""Saved bytes, relative to the input, from which a module is compared. A function such as GELU saves its input alone,
which the layer before it keeps anyway."""
TOLERANCE = 1e-5
"""Largest relative L2 of the difference of equal functions and of their gradients, in float32. The two forms of GELU
differ by more than 1e-4."""
FUNCTIONS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("F.relu(x)", F.relu),
    ("F.gelu(x)", F.gelu),
    ('F.gelu(x, approximate="tanh")', partial(F.gelu, approximate="tanh")),
    ("F.silu(x)", F.silu),
    ("F.mish(x)", F.mish),
    ("F.hardswish(x)", F.hardswish),
    ("F.softplus(x)", F.softplus),
    ("F.softmax(x, -1)", partial(F.softmax, dim=-1)),
)
"""Built-in functions of one tensor, as code."""
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12)
"""Usual constants of normalisation layers, beside those among a module's attributes."""


@dataclass(slots=True)
class Load:
    """What one call of a module saves.

    Attributes:
        given: its input.
        saved: bytes of the storages that it saved, by storage.
    """

    given: torch.Tensor
    saved: dict[int, int] = field(default_factory=dict)

    def bytes_beside(self, module: nn.Module, output: Any) -> int:
        """Returns the bytes that it keeps beside its input, its output and its parameters."""
        others = [self.given, output, *module.parameters(), *module.buffers()]
        known = {storage_id(each.untyped_storage()) for each in others if isinstance(each, torch.Tensor)}
        return sum(size for storage, size in self.saved.items() if storage not in known)


class HeavyModule(Detector):
    """Modules without parts that save more than their input, although a built-in function has the same values.

    A function is recognised by its values and gradients on the module's real input, not by the module's name.
    """

    id = "heavy-module"
    about = "a module that saves more than the built-in function which computes the same"
    runs = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each kind of module, measured in a step without it."""
        kinds = defaultdict[tuple[type[nn.Module], str], dict[nn.Module, Callable[..., Any]]](dict)
        for module, given in _heavy_modules(observation.further):
            if (found := equal_function(module, given)) is not None:
                kinds[type(module), found[0]][module] = found[1]
        for (kind, code), forwards in kinds.items():
            change = Change(f"{len(forwards)} {kind.__name__} as {code}", partial(replaced, forwards))
            saved_bytes = observation.further.saved_bytes(change)
            if saved_bytes is None or is_nothing(observation, saved_bytes):
                continue
            names = [observation.name_of(module) for module in forwards]
            several = f"{len(names)} {kind.__name__}, such as {names[0]}, compute {code} and save more for it"
            one = f"{names[0]} ({kind.__name__}) computes {code} and saves more for it"
            yield Finding(
                id=self.id,
                what=several if len(names) > 1 else one,
                remedy=f"use {code}, or set the model's configuration so that it does",
                places=tuple(Place(module=name) for name in names[:8]),
                confirmed=change.about,
                **at_peak(observation, saved_bytes, basis="measured"),
            )


def _heavy_modules(what_if: WhatIf) -> list[tuple[nn.Module, torch.Tensor]]:
    """Returns the modules without parts that save much beside their input, each with its input, from one step."""
    calls = _Calls()
    hooks = [
        register_module_forward_pre_hook(calls.enter),
        register_module_forward_hook(calls.leave, always_call=True),
    ]
    try:
        with suppress(Exception), torch.autograd.graph.saved_tensors_hooks(calls.pack, lambda tensor: tensor):
            what_if.run()
    finally:
        for hook in hooks:
            hook.remove()
    return list(calls.heavy.items())


class _Calls:
    """Follows the calls of modules without parts. `heavy` are those that save much, each with its input."""

    def __init__(self) -> None:
        self.heavy: dict[nn.Module, torch.Tensor] = {}
        self._stack: list[tuple[nn.Module, Load]] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        if args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point() and not list(module.children()):
            self._stack.append((module, Load(args[0].detach())))

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._stack[-1][0] is module:
            load = self._stack.pop()[1]
            if load.bytes_beside(module, output) > HEAVY_RATIO * load.given.numel() * load.given.element_size():
                self.heavy[module] = load.given

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._stack and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            self._stack[-1][1].saved[storage_id(storage)] = storage.nbytes()
        return tensor.detach()


def equal_function(module: nn.Module, given: torch.Tensor) -> tuple[str, Callable[..., Any]] | None:
    """Returns a built-in function with the same values and gradients as a module at an input, as code and function.

    Returns None if there is none, or if the module draws random numbers or changes its state.
    """
    if (wanted := _run(module, given)) is None:
        return None
    for code, function in (*FUNCTIONS, *_norms(module, given)):
        other = _run(function, given)
        if other is not None and all(map(_are_close, wanted, other)):
            return code, function
    return None


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= TOLERANCE * other.norm())


def _run(function: Callable[..., Any], given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the values of a function and the gradient of a sum with uneven weights; None if it fails."""
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.enable_grad():
        leaf = given.detach().float().clone().requires_grad_()
        value = function(leaf)
        if isinstance(value, torch.Tensor) and value.shape == leaf.shape:
            (slope,) = torch.autograd.grad(value, leaf, torch.ones_like(value) + value.detach().sin())
            return value.detach(), slope
    return None


def _norms(module: nn.Module, given: torch.Tensor) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields layer and root-mean-square normalisation with the parameters of a module, if it may be one."""
    parameters = dict(module.named_parameters(recurse=False))
    size = given.shape[-1:]
    if not 0 < len(parameters) <= 2 or any(each.shape != size for each in parameters.values()):
        return
    scale = next((name for name in parameters if "bias" not in name), "")
    others = [name for name in parameters if name != scale]
    weight = parameters.get(scale)
    bias = parameters[others[0]] if others else None
    constants = sorted({value for value in vars(module).values() if isinstance(value, float)} | set(EPSILONS))
    for eps in constants:
        shift = "" if bias is None else f", self.{others[0]}"
        yield (
            f"F.layer_norm(x, {tuple(size)}, self.{scale}{shift}, eps={eps:g})",
            partial(F.layer_norm, normalized_shape=tuple(size), weight=weight, bias=bias, eps=eps),
        )
        if bias is None:
            yield (
                f"F.rms_norm(x, {tuple(size)}, self.{scale}, {eps:g})",
                partial(F.rms_norm, normalized_shape=tuple(size), weight=weight, eps=eps),
            )
