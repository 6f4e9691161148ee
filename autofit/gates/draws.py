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
from contextlib import suppress
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
        axes: sample dimension of a draw; None if its shape is the same for any batch.
        generators: the user's own generators that were seen, with their initial states.
        learning: whether draws are seen for the first time. Afterwards, a new draw belongs to one side only.
        drawn: whether anything was drawn.
        unshared: whether a draw cannot be shared, so that the sides differ by chance.
    """

    shapes: dict[int, tuple[_Shape, int]] = field(default_factory=dict)
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

    def __init__(self, ledger: DrawLog, first: int, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self.first, self.size = ledger, first, size

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

        return drawn(0, args, kwargs) if axis is None else self._by_sample(drawn, func, args, kwargs, shape, axis)

    def _by_sample(
        self, drawn: Callable[..., Any], func: Any, args: Any, kwargs: Mapping[str, Any], shape: _Shape, axis: int
    ) -> Any:
        picks = func is _PICK and axis == len(shape) - 1  # all samples pick from the same distribution
        self._ledger.unshared |= picks and not (args[2] if len(args) > 2 else kwargs.get("replacement", False))
        rows, pieces = shape[axis] // self.size, []
        for sample in range(self.size):

            def cut(arg: Any, start: int = sample * rows) -> Any:
                if isinstance(arg, torch.Tensor):
                    alike = not picks and arg.dim() == len(shape) and arg.shape[axis] == shape[axis]
                    return arg.narrow(axis, start, rows) if alike else arg
                alike = isinstance(arg, (list, tuple)) and tuple(arg) == shape
                return [*shape[:axis], rows, *shape[axis + 1 :]] if alike else arg

            part = [args[0], rows, *args[2:]] if picks else [cut(arg) for arg in args]
            pieces.append(drawn(self.first + sample, part, {name: cut(arg) for name, arg in kwargs.items()}))
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


def _shape(func: Any, args: Sequence[Any]) -> _Shape | None:
    """Returns the shape that a random operator fills: that of its tensors together, or its list argument."""
    if func is _PICK:
        return (*args[0].shape[:-1], int(args[1]))
    shapes = [arg.shape for arg in args if isinstance(arg, torch.Tensor)]
    if not shapes:
        return next((tuple(int(side) for side in arg) for arg in args if isinstance(arg, (list, tuple))), None)
    with suppress(RuntimeError):  # they do not belong together
        return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]  # torch has no types here
    return None


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

    wide = {name: torch.float32 if arg in _REDUCED else arg for name, arg in kwargs.items()}
    found = func(*tree_map_only(torch.Tensor, widened, list(args)), **tree_map_only(torch.Tensor, widened, wide))
    if _in_place(func):
        return args[0].copy_(found)

    def narrowed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(wanted) if tensor.dtype == torch.float32 else tensor

    return tree_map_only(torch.Tensor, narrowed, found)
