"""Simulated device memory on the CPU: what operators return counts, and above a limit they run out of memory."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB (simulated)."


class CappedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """While it is active, live storages that were made inside count; above `most_bytes` an operator raises.

    Attributes:
        most_bytes: limit; None for no limit. It may be changed at any time.
        live_bytes: bytes of the live storages that were made inside.
        peak_bytes: highest sum so far.
        ooms: number of errors raised.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_bytes, self.live_bytes, self.peak_bytes, self.ooms = most_bytes, 0, 0, 0
        self._seen: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator and counts what it returns."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self.most_bytes is not None and self.live_bytes > self.most_bytes:
            out = tensor = None  # else this frame holds what did not fit
            self.ooms += 1
            raise torch.OutOfMemoryError(TEXT)
        return out

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if (key := storage._cdata) not in self._seen:
            self._seen[key] = storage.nbytes()
            self.live_bytes += storage.nbytes()
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live_bytes -= self._seen.pop(key, 0)
