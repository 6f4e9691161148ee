"""Memory that a run leaves on the device: found by the allocator's total, named by the tensors that Python can see."""

import gc
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.probing.timing import MOST_KEPT_BYTES
from autofit.torch_internals import FakeTensor

LEAST_BYTES = 2**20
"""Smallest leak that is reported. A kept loss takes 512 bytes; a table that a library makes lazily takes some KiB."""


def growth(live: Sequence[int | None], now: Callable[[], int | None]) -> int:
    """Returns the bytes that each step left behind; 0 if one of them left less than `MOST_KEPT_BYTES`.

    The first step is not judged, because it makes the optimizer's state. A cache that is filled once does not grow in
    each of the others. At least three steps are needed. The guard puts lists back, so `LeakWatch` sees nothing in them.
    `now` reads the live bytes again, once garbage is collected: reference cycles are not leaks.
    """
    known = [each for each in live if each is not None]
    if len(known) < 3 or _slope(known) < MOST_KEPT_BYTES:
        return 0
    gc.collect()
    left = min(_slope(known), ((now() or 0) - known[0]) // (len(known) - 1))
    return left if left >= MOST_KEPT_BYTES else 0


def _slope(live: Sequence[int]) -> int:
    return min(after - before for before, after in pairwise(live))


class LeakWatch:
    """Compares the live memory on the device after a run with that before it.

    Create it once everything that belongs to the search is on the device. Devices whose allocator does not count live
    tensors (the CPU) are not watched.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # By id, because tensors compare by their elements; with a weak reference, because ids are reused.
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        if device.live_bytes() is not None:
            self._new_tensors()
        self._before: int | None = None

    def begin(self) -> None:
        """Records the live memory at the start of a run."""
        self._before = self._device.live_bytes()

    def found(self) -> str:
        """Describes what the last run left on the device. Returns "" if that is less than `LEAST_BYTES`.

        Call it after everything was restored. Each leak is reported once.
        """
        if self._left() < LEAST_BYTES:
            return ""
        gc.collect()
        if (left := self._left()) < LEAST_BYTES:
            return ""
        return f"{format_bytes(left)} stayed on the device after the run: {_named(self._new_tensors())}"

    def _left(self) -> int:
        now = self._device.live_bytes()
        return 0 if now is None or self._before is None else now - self._before

    def _new_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors on the device that were not returned before.

        Only tensors that the garbage collector tracks are found; a frozen heap is left out.
        """
        found = []
        for x in gc.get_objects():
            if issubclass(type(x), torch.Tensor) and self._is_on_device(x):
                known = self._known.get(id(x))
                if known is None or known() is not x:
                    found.append(x)
                    self._known[id(x)] = weakref.ref(x)
        return found

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return False
        try:
            device = tensor.device
        except RuntimeError:  # a wrapper of functorch whose level has ended
            return False
        wanted = self._device.torch_device
        return device.type == wanted.type and wanted.index in (None, device.index)


def _named(kept: list[torch.Tensor]) -> str:
    if not kept:
        return "no tensor that Python can see; an extension or an autograd graph holds the memory"
    largest = max(kept, key=lambda t: t.numel() * t.element_size())
    count = "1 tensor" if len(kept) == 1 else f"{len(kept)} tensors"
    what = f"{str(largest.dtype).removeprefix('torch.')} {tuple(largest.shape)}"
    text = f"your code keeps {count}, the largest {what}"
    if any(t.requires_grad and not t.is_leaf for t in kept):
        return f"{text}, with its autograd graph and thus every activation of the step. Keep loss.item() instead"
    return f"{text}. Do not keep a step's tensors after the step, or keep copies made with .cpu()"
