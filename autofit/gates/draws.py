"""Random numbers that belong to samples: a sample gets the same numbers in a whole batch and in a micro batch.

A difference of gradients is then not due to chance (the noise of a diffusion model, custom dropout, stochastic depth).
The draws of a step are recorded. Other steps get them again: the rows of their samples if a draw grows with the batch
along one dimension, and all of it if not (one coin for the whole step). A draw is identified by the state of its
generator, which each draw here advances by one step, whatever its shape.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autofit.torch_internals import TorchDispatchMode, schema_of

_DROPOUT, _ORDER = torch.ops.aten.native_dropout, torch.ops.aten.randperm


def draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Returns whether a call of an operator draws random numbers, by torch's tag `nondeterministic_seeded`.

    An operator with a dropout argument (attention, recurrent layers) draws none if that is 0.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(schema_of(func).arguments):
        if "dropout" in argument.name:
            rate = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(rate != 0)
    return True


@dataclass(slots=True)
class DrawLog:
    """What is known about the draws of a step, kept from one run to the next.

    Attributes:
        samples: number of samples of the step whose draws were recorded last.
        results: what its draws returned, by the state of the generator; of dropout, the mask.
        generators: the user's own generators that were seen, with their initial states.
        unshared: whether a draw cannot be shared, so that the sides differ by chance.
    """

    samples: int = 0
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    generators: dict[int, tuple[torch.Generator, torch.Tensor]] = field(default_factory=dict)
    drawn: bool = False
    unshared: bool = False

    def rewind(self) -> None:
        """Resets the user's own generators to their initial states."""
        for generator, state in self.generators.values():
            generator.set_state(state)

    def rows(self, key: int, shape: torch.Size, first: int, size: int) -> torch.Tensor | None:
        """Returns the part of a draw that belongs to samples `first` to `first + size`; None if that is unknown."""
        known = self.results.get(key)
        if known is None or known.shape == shape:
            return known
        pairs = list(zip(known.shape, shape, strict=False))
        dims = [dim for dim, (before, now) in enumerate(pairs) if before != now]
        if known.dim() != len(shape) or len(dims) != 1 or pairs[dims[0]] != (self.samples, size):
            return None  # such as several rows per sample: their order, by sample or not, is unknown
        return known.narrow(dims[0], first, size)


class SharedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """While it is active, random operators draw for the samples `first` to `first + size` of the step.

    With `record`, the draws are recorded in the ledger, in place of those of another step.
    """

    def __init__(self, ledger: DrawLog, first: int, size: int, *, record: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger, self.first, self.size, self._record = ledger, first, size, record
        self._seen = set[int]()
        if record:
            ledger.samples, ledger.results = size, {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator. A random operator returns what was recorded."""
        kwargs = dict(kwargs or {})
        if not draws(func, args, kwargs):
            return func(*args, **kwargs)
        ledger, generator = self._ledger, self._generator(args, kwargs)
        ledger.drawn = True
        if generator is None or "out" in kwargs:
            ledger.unshared = True
            return func(*args, **kwargs)
        key = _advanced(generator)
        self._seen.add(key)
        after = generator.get_state()
        found = func(*args, **kwargs)
        generator.set_state(after)
        drawn = found[1] if func.overloadpacket is _DROPOUT else found
        if not isinstance(drawn, torch.Tensor) or "dropout" in str(schema_of(func).arguments):
            ledger.unshared = True  # it draws inside
        elif self._record:
            ledger.results[key] = drawn.clone()
        elif func.overloadpacket is not _ORDER or ledger.samples == self.size:
            rows = ledger.rows(key, drawn.shape, self.first, self.size)
            ledger.unshared |= rows is None
            return found if rows is None else _instead(func, args, found, rows)
        else:
            ledger.unshared = True
        return found

    def ended(self) -> None:
        """Notes whether the step drew less than the recorded one."""
        self._ledger.unshared |= not self._seen.issuperset(self._ledger.results)

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


def _instead(func: Any, args: Sequence[Any], found: Any, rows: torch.Tensor) -> Any:
    """Returns what an operator would return if it had drawn `rows`."""
    if func.overloadpacket is _DROPOUT:
        return args[0] * rows / (1 - args[1]), rows.clone()
    return found.copy_(rows) if found is args[0] else rows.to(found.dtype, copy=True)


def _advanced(generator: torch.Generator) -> int:
    """Returns a number that identifies the state of a generator, and advances the generator."""
    key = hashlib.sha256(generator.get_state().numpy().tobytes()).digest()[:7]
    torch.rand(1, generator=generator, device=generator.device)
    return int.from_bytes(key)
