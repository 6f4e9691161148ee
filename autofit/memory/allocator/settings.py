"""Settings: the options of the caching allocator in `PYTORCH_ALLOC_CONF`, and the sizes that follow from them.

Rules and limits are those of torch 2.11 and 2.13: c10/core/AllocatorConfig.{h,cpp} (constants, option names, valid
values) and `round_size`, `get_allocation_size` of c10/cuda/CUDACachingAllocator.cpp. Each was compared with the real
parser and allocator (tests/cuda/test_allocator_simulator.py).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autofit.core.errors import UsageError

MIB = 1 << 20
BLOCK_BYTES = 512
"""Sizes are rounded up to a multiple of this size (kMinBlockSize)."""
SMALL_BYTES = MIB
"""Maximum request that is served from the small pool (kSmallSize)."""
SMALL_SEGMENT_BYTES = 2 * MIB
"""Size of a segment of the small pool (kSmallBuffer)."""
OWN_SEGMENT_BYTES = 10 * MIB
"""Minimum request that gets a segment of its own size (kMinLargeAlloc), rounded up to `ROUND_LARGE_BYTES`."""
ROUND_LARGE_BYTES = 2 * MIB
INTERVALS = 16
"""Number of values of `roundup_power2_divisions`: one per power of two in MiB, below 2, from 2, 4, ..., 32,768."""

WITHOUT_EFFECT = frozenset(
    {
        "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register", "pinned_use_hip_host_register", "pinned_num_register_threads",
        "pinned_use_background_threads", "pinned_reserve_segment_size_mb", "pinned_free_catch_all",
        "pinned_max_round_threshold_mb", "pinned_max_cached_size_mb",
    }
)  # fmt: skip
"""Options for locks and host memory, which do not affect device allocations."""
_FIRST = "large_segment_size_mb"
"""The option that torch reads first, since the minimum values of others depend on it."""
NOT_MODELLED = {
    "graph_capture_record_stream_reuse": "memory of CUDA graphs is not simulated",
    "throw_on_cudamalloc_oom": "failing early instead of retrying is not simulated",
}
"""Options that are accepted and named in `Settings.notes`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the caching allocator. The defaults are those of torch.

    Attributes:
        large_segment_bytes: segment size for requests above 1 and below 10 MiB, and page size of a large expandable
            segment.
        max_split_bytes: minimum size of blocks that are never split. None splits blocks of any size.
        max_non_split_rounding_bytes: maximum excess of an unsplittable block over the request.
        divisions: number of rounding steps between two powers of two, by interval. 0 and 1 round to multiples of 512.
        gc_threshold_ratio: share of the memory limit above which old cached segments are released. 0 never does.
            It has no effect without a limit below the whole device.
        expandable_segments: whether segments are expandable.
        memory_fraction: share of the device that the allocator may reserve.
        notes: options that are set but not simulated, each with an explanation.
    """

    large_segment_bytes: int = 20 * MIB
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    divisions: tuple[int, ...] = (0,) * INTERVALS
    gc_threshold_ratio: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float = 1.0
    notes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Settings":
        """Parses options in the format of `PYTORCH_ALLOC_CONF`.

        Raises:
            UsageError: an option is unknown, has a value that torch rejects, or selects another allocator.
        """
        settings: Settings = cls()
        for name, value in sorted(_options(text), key=lambda option: option[0] != _FIRST):
            settings = _with_option(settings, name, value)
        return settings

    def rounded(self, requested_bytes: int) -> int:
        """Returns the rounded size of a request in bytes (`round_size`)."""
        if requested_bytes < BLOCK_BYTES:
            return BLOCK_BYTES
        interval = requested_bytes.bit_length() - 1 - (MIB.bit_length() - 1)
        divisions = self.divisions[min(max(interval, 0), INTERVALS - 1)]
        if divisions <= 1 or requested_bytes <= BLOCK_BYTES * divisions:
            return -(-requested_bytes // BLOCK_BYTES) * BLOCK_BYTES
        step = (1 << (requested_bytes.bit_length() - 1)) // divisions
        return -(-requested_bytes // step) * step

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Returns the bytes requested from the driver if no cached block fits (`get_allocation_size`)."""
        if rounded_bytes <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if rounded_bytes < OWN_SEGMENT_BYTES:
            return self.large_segment_bytes
        return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _options(text: str) -> list[tuple[str, str]]:
    """Returns names and values. Commas inside brackets are part of the value."""
    squeezed = "".join(text.split())
    found = []
    for item in re.split(r",(?![^\[]*\])", squeezed.removesuffix(",")) if squeezed else []:
        name, colon, value = item.partition(":")
        if not name or not colon or not value:
            raise UsageError(
                f"cannot read {item!r} in the allocator options {text!r}; expected name:value pairs separated by "
                "commas, for example max_split_size_mb:128,expandable_segments:True."
            )
        found.append((name, value))
    return found


def _with_option(settings: Settings, name: str, value: str) -> Settings:
    if name in _MODELLED:
        return _MODELLED[name](settings, name, value)
    if name in WITHOUT_EFFECT:
        return settings
    if name in NOT_MODELLED:
        return replace(settings, notes=(*settings.notes, f"{name}:{value}: {NOT_MODELLED[name]}"))
    known = ", ".join(sorted((*_MODELLED, *NOT_MODELLED, *WITHOUT_EFFECT)))
    raise UsageError(f"unknown allocator option {name!r}; expected one of {known}. Correct it or remove it.")


def _backend(settings: Settings, name: str, value: str) -> Settings:
    if value != "native":
        raise UsageError(
            f"the allocator backend {value!r} is not simulated, only the native one. Remove the option, or "
            "measure instead of estimating."
        )
    return settings


_SIZES = {
    _FIRST: "large_segment_bytes",
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
}


def _size(settings: Settings, name: str, value: str) -> Settings:
    least = 11 if name == _FIRST else settings.large_segment_bytes // MIB
    if not value.isdecimal() or int(value) < least:
        raise _rejected(name, value, f"an integer number of MiB, at least {least}")
    changes: dict[str, Any] = {_SIZES[name]: int(value) * MIB}
    return replace(settings, **changes)


def _gc_threshold(settings: Settings, name: str, value: str) -> Settings:
    ratio = _number(name, value)
    if not 0 < ratio < 1:
        raise _rejected(name, value, "a number between 0 and 1, both excluded")
    return replace(settings, gc_threshold_ratio=ratio)


def _expandable(settings: Settings, name: str, value: str) -> Settings:
    if value not in ("True", "False"):
        raise _rejected(name, value, "True or False")
    return replace(settings, expandable_segments=value == "True")


def _memory_fraction(settings: Settings, name: str, value: str) -> Settings:
    fraction = _number(name, value)
    if not 0 <= fraction <= 1:
        raise _rejected(name, value, "a number from 0 to 1")
    return replace(settings, memory_fraction=fraction)


def _divisions(settings: Settings, name: str, value: str) -> Settings:
    """Parses one number for all sizes, or a list such as [256:1,512:2,>:4] in MiB.

    A value applies to sizes from its power of two to the next. The first also applies to all smaller sizes, and ">" to
    all sizes above the last.
    """
    if not value.startswith("["):
        return replace(settings, divisions=(_power_of_two(name, value),) * INTERVALS)
    if not value.endswith("]"):
        raise _rejected(name, value, "a closing bracket")
    table = [0] * INTERVALS
    last = 0
    for number, item in enumerate(filter(None, value[1:-1].split(","))):
        bound, _, steps = item.partition(":")
        division = 0 if steps == "0" else _power_of_two(name, steps)
        if bound == ">":
            table[last + 1 :] = [division] * (INTERVALS - last - 1)
            continue
        last = min(_power_of_two(name, bound).bit_length() - 1, INTERVALS - 1)
        if number == 0:
            table[:last] = [division] * last
        table[last] = division
    return replace(settings, divisions=tuple(table))


_MODELLED: dict[str, Callable[[Settings, str, str], Settings]] = {
    "backend": _backend,
    **dict.fromkeys(_SIZES, _size),
    "garbage_collection_threshold": _gc_threshold,
    "expandable_segments": _expandable,
    "per_process_memory_fraction": _memory_fraction,
    "roundup_power2_divisions": _divisions,
}


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _rejected(name, value, "a number") from None


def _power_of_two(name: str, value: str) -> int:
    if not value.isdecimal() or int(value).bit_count() != 1:
        raise _rejected(name, value, "a power of two")
    return int(value)


def _rejected(name: str, value: str, expected: str) -> UsageError:
    return UsageError(
        f"the allocator option {name} is {value!r}; expected {expected}. torch would reject it too. Correct it."
    )
