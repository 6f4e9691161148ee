"""Random numbers that belong to samples: a sample gets the same numbers in a whole batch and in a micro batch.

This makes gradients comparable for steps that draw random numbers (the noise of a diffusion model, custom dropout,
stochastic depth). Both sides of the comparison draw the same numbers, so a remaining difference is not due to chance.

A draw is identified by the state of its generator, which each draw here advances by one step, whatever its shape. If
the shape of a draw grows with the batch along one dimension, it is drawn sample by sample, each from its own seed. If
the shape does not grow (one coin for the whole step), the draw is the same in each micro batch. A draw from one
distribution of classes (`multinomial`) has its samples along the dimension of the picks. 16-bit numbers are drawn in 32
bits, since kernels draw differently for each type.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from autofit.workloads.random_operators import draws

_GOLDEN = 0x9E3779B97F4A7C15
_REDUCED = (torch.bfloat16, torch.float16)
_Shape = tuple[int, ...]


@dataclass(slots=True)
class DrawLog:
    """What is known about the draws of a step, kept from one run to the next.

    Attributes:
        shapes: shape and number of samples of each draw at its first occurrence.
        results: for draws without a sample dimension, shape of the first result and number of samples.
        axes: sample dimension of a draw; None if its shape is the same for any batch.
        generators: the user's own generators that were seen, with their initial states.
        learning: whether draws are seen for the first time. Afterwards, a new draw belongs to one side only.
        drawn: whether anything was drawn.
        unshared: whether a draw cannot be shared, so that the sides differ by chance.
    """

    shapes: dict[int, tuple[_Shape, int]] = field(default_factory=dict)
    results: dict[int, tuple[_Shape, int]] = field(default_factory=dict)
    axes: dict[int, int | None] = field(default_factory=dict)
    generators: dict[int, tuple[torch.Generator, torch.Tensor]] = field(default_factory=dict)
    learning: bool = True
    drawn: bool = False
    unshared: bool = False

    def rewind(self) -> None:
        """Resets the user's own generators to their initial states."""
        for generator, state in self.generators.values():
            generator.set_state(state)

    def axis(self, key: int, shape: _Shape, size: int) -> int | None:
        """Returns the sample dimension of a draw for `size` samples; None if it has none.

        The dimension is found by comparing two batch sizes: the first draw and a later one of another size.
        """
        if key not in self.shapes:
            self.unshared |= not self.learning
            self.shapes[key] = shape, size
        known, samples = self.shapes[key]
        if samples != size and key not in self.axes:
            self.axes[key] = self._grown(known, samples, shape, size)
        elif samples == size and shape != known:
            self.unshared = True
        return self.axes.get(key)

    def check(self, key: int, found: Any, size: int) -> None:
        """Checks whether the result of a draw grows with the batch although its arguments do not."""
        if isinstance(found, torch.Tensor):
            known, samples = self.results.setdefault(key, (tuple(found.shape), size))
            self.unshared |= samples != size and known != found.shape

    def _grown(self, known: _Shape, samples: int, shape: _Shape, size: int) -> int | None:
        if shape == known:
            return None
        grown = [dim for dim, (now, before) in enumerate(zip(shape, known, strict=False)) if now != before]
        dim = grown[0] if len(grown) == 1 and len(shape) == len(known) else None
        if dim is None or shape[dim] * samples != known[dim] * size or shape[dim] % size:
            self.unshared = True
            return None
        self.unshared |= shape[dim] != size  # several rows per sample: their order, by sample or not, is unknown
        return dim


class SharedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """While it is active, random operators draw for the samples `first` to `first + size` of the step."""

    def __init__(self, ledger: DrawLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self.first, self.size = ledger, 0, 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator. A random operator draws separately for each sample."""
        kwargs = dict(kwargs or {})
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        self._ledger.drawn = True
        generator, shape = self._generator(args, kwargs), _shape(func, args)
        if generator is None or shape is None or "out" in kwargs or _drops_inside(func):
            self._ledger.unshared = True
            return func(*args, **kwargs)
        key = _advanced(generator)
        axis = self._ledger.axis(key, shape, self.size)

        def drawn(sample: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            after = generator.get_state()
            generator.manual_seed((key + sample * _GOLDEN) % 2**63)
            try:
                return _in_32_bits(func, args, kwargs)
            finally:
                generator.set_state(after)

        if axis is None:
            found = drawn(0, args, kwargs)
            self._ledger.check(key, found, self.size)
            return found
        return self._by_sample(drawn, func, args, kwargs, shape, axis)

    def _by_sample(
        self,
        drawn: Callable[[int, Sequence[Any], Mapping[str, Any]], Any],
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        shape: _Shape,
        axis: int,
    ) -> Any:
        rows = shape[axis] // self.size
        pieces = []
        picks = func is _PICK and axis == len(shape) - 1  # all samples pick from the same distribution
        self._ledger.unshared |= picks and not _replaces(args, kwargs)
        for sample in range(self.size):

            def cut(tensor: torch.Tensor, sample: int = sample) -> torch.Tensor:
                alike = not picks and tensor.dim() == len(shape) and tensor.shape[axis] == shape[axis]
                return tensor.narrow(axis, sample * rows, rows) if alike else tensor

            part = [_resized(arg, shape, axis, rows) for arg in tree_map_only(torch.Tensor, cut, list(args))]
            if picks:
                part[1] = rows
            pieces.append(drawn(self.first + sample, part, tree_map_only(torch.Tensor, cut, dict(kwargs))))
        if _in_place(func):
            return args[0]
        if isinstance(pieces[0], torch.Tensor):
            return torch.cat(pieces, axis)
        return tuple(torch.cat(column, axis) for column in zip(*pieces, strict=True))

    def _generator(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Generator | None:
        """Returns the generator of a draw: the user's own, or that of the device; None if it is unknown."""
        given = kwargs.get("generator")
        if given is not None:
            self._ledger.generators.setdefault(id(given), (given, given.get_state()))
            return given  # type: ignore[no-any-return]  # of the operator's arguments
        tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        device = torch.device(kwargs.get("device") or "cpu") if tensor is None else tensor.device
        if device.type == "cpu":
            return torch.default_generator
        module = torch.get_device_module(device.type)
        index = module.current_device() if device.index is None else device.index
        generators = getattr(module, "default_generators", ())
        return generators[index] if index < len(generators) else None


def _drops_inside(func: Any) -> bool:
    return any("dropout" in argument.name for argument in func._schema.arguments)


def _in_place(func: Any) -> bool:
    first = func._schema.arguments[0].alias_info
    return first is not None and bool(first.is_write)


_PICK = torch.ops.aten.multinomial.default


def _replaces(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return bool(args[2] if len(args) > 2 else kwargs.get("replacement", False))


def _shape(func: Any, args: Sequence[Any]) -> _Shape | None:
    """Returns the shape that a random operator fills: that of its first tensor, or its list argument."""
    if func is _PICK:
        return (*args[0].shape[:-1], int(args[1]))
    for arg in args:
        if isinstance(arg, torch.Tensor):
            return tuple(arg.shape)
        if isinstance(arg, (list, tuple)):
            return tuple(int(side) for side in arg)
    return None


def _resized(arg: Any, shape: _Shape, axis: int, rows: int) -> Any:
    if isinstance(arg, (list, tuple)) and tuple(arg) == shape:
        return [*shape[:axis], rows, *shape[axis + 1 :]]
    return arg


def _advanced(generator: torch.Generator) -> int:
    """Returns a number that identifies the state of a generator, and advances the generator."""
    key = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()[:7]
    torch.rand(1, generator=generator, device=generator.device)
    return int.from_bytes(key)


def _in_32_bits(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs a random operator. 16-bit numbers are drawn in 32 bits and rounded."""
    first = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    wanted = kwargs.get("dtype") or (None if first is None else first.dtype)
    if wanted not in _REDUCED:
        return func(*args, **kwargs)

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in _REDUCED else tensor

    wide = {**tree_map_only(torch.Tensor, widened, dict(kwargs))}
    if kwargs.get("dtype") in _REDUCED:
        wide["dtype"] = torch.float32
    found = func(*tree_map_only(torch.Tensor, widened, list(args)), **wide)
    if _in_place(func):
        return args[0].copy_(found)

    def narrowed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(wanted) if tensor.dtype == torch.float32 else tensor

    return tree_map_only(torch.Tensor, narrowed, found)
