"""What a run leaves on the device: noticed by the allocator's sum, named by the tensors that Python can see."""

import gc
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.units import format_bytes
from autofit.devices.base import Device

LEAST_BYTES = 2**20
"""Less is no leak: a loss that is kept takes 512 bytes, a library's lazily made table some KiB, once."""


class LeakWatch:
    """Compares what is live on the device after a run with what was live before it.

    Make it when everything that belongs to the search is on the device. Devices whose allocator does not count its live
    tensors (the CPU) are not watched.

    Args:
        device: where the runs take place.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # By number and weakly: tensors compare by their elements, and the number of one that died is used again.
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        if device.live_bytes() is not None:
            self._new_tensors()
        self._before: int | None = None

    def begin(self) -> None:
        """Notes what is live as a run begins."""
        self._before = self._device.live_bytes()

    def found(self) -> str:
        """Returns, in words, what the run that began last has left on the device; empty when that is next to nothing.

        Call it after everything was put back. What was found is not found again.
        """
        if self._left() < LEAST_BYTES:
            return ""
        gc.collect()
        left = self._left()
        if left < LEAST_BYTES:
            return ""
        return f"{format_bytes(left)} stayed on the device after the run: {_named(self._new_tensors())}"

    def _left(self) -> int:
        now = self._device.live_bytes()
        return 0 if now is None or self._before is None else now - self._before

    def _new_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors on the device that this did not return before.

        Those that the garbage collector tracks; a frozen heap is left out.
        """
        found = []
        for x in gc.get_objects():
            if issubclass(type(x), torch.Tensor) and self._is_there(x):
                known = self._known.get(id(x))
                if known is None or known() is not x:
                    found.append(x)
                    self._known[id(x)] = weakref.ref(x)
        return found

    def _is_there(self, tensor: torch.Tensor) -> bool:
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
        return "no tensor that Python can see; an extension or the autograd graph of something elsewhere holds it"
    largest = max(kept, key=lambda t: t.numel() * t.element_size())
    count = "1 tensor" if len(kept) == 1 else f"{len(kept)} tensors"
    what = f"{str(largest.dtype).removeprefix('torch.')} {tuple(largest.shape)}"
    text = f"your code keeps {count}, the largest {what}"
    if any(t.requires_grad and not t.is_leaf for t in kept):
        return f"{text}, with the autograd graph and so every activation of the step. Keep loss.item() instead"
    return f"{text}. Do not keep tensors of a step beyond it, or keep them with .cpu()"
