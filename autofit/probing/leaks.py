"""What a run leaves on the device: noticed by the allocator's sum, named by the tensors that Python can see."""

import gc

import torch

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
        self._known: set[int] = set() if device.live_bytes() is None else {id(t) for t in self._tensors()}
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
        kept = [t for t in self._tensors() if id(t) not in self._known]
        self._known.update(map(id, kept))
        return f"{format_bytes(left)} stayed on the device after the run: {_named(kept)}"

    def _left(self) -> int:
        now = self._device.live_bytes()
        return 0 if now is None or self._before is None else now - self._before

    def _tensors(self) -> list[torch.Tensor]:
        """Returns the tensors on the device that the garbage collector tracks; a frozen heap is left out."""
        kind = self._device.torch_device.type
        return [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and x.device.type == kind]


def _named(kept: list[torch.Tensor]) -> str:
    if not kept:
        return "no tensor that Python can see; an extension or the autograd graph of something elsewhere holds it"
    largest = max(kept, key=lambda t: t.numel() * t.element_size())
    count = "1 tensor" if len(kept) == 1 else f"{len(kept)} tensors"
    what = f"{str(largest.dtype).removeprefix('torch.')} {tuple(largest.shape)}"
    text = f"your code keeps {count}, the largest {what}"
    if any(t.grad_fn is not None for t in kept):
        return f"{text}, with the autograd graph and so every activation of the step. Keep loss.item() instead"
    return f"{text}. Do not keep tensors of a step beyond it, or keep them with .cpu()"
