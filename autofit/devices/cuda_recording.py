"""CUDA recording: the requests to the caching allocator, from its history.

Marks are counts of requests, which the allocator keeps even if its history is off. A block that another stream still
uses is released later than requested; the recording has the time at which it can be used again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit.core.errors import Untraceable
from autofit.devices.base import AllocatorRequest, Recording

INACTIVE = "inactive"
COUNTED = ("alloc", "free_requested")


@contextmanager
def recording(index: int) -> Iterator[Recording]:
    """Records the requests to the caching allocator of one device while the context is open.

    Raises:
        Untraceable: the user has enabled the allocator's history, which would be lost.
    """
    if torch._C._cuda_isHistoryEnabled():
        raise Untraceable("the allocator's history is on and would be lost", "while recording a short run")
    initial = {
        block["address"]: block["requested_size"]
        for segment in torch.cuda.memory._snapshot()["segments"]
        for block in segment["blocks"]
        if segment["device"] == index and block["state"] != INACTIVE
    }
    counts: list[int] = []
    found = Recording(lambda: counts.append(_count(index)), initial)
    torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
    try:
        before = _count(index)
        yield found
        history = torch.cuda.memory._snapshot()["device_traces"][index]
    finally:
        torch.cuda.memory._record_memory_history(None, context=None, stacks="python")
    _read(history, [count - before for count in counts], found)


def _count(index: int) -> int:
    """Returns the number of allocations and releases since the process began."""
    stats = torch.cuda.memory_stats(index)
    return int(stats.get("allocation.all.allocated", 0)) + int(stats.get("allocation.all.freed", 0))


def _read(history: list[dict[str, Any]], counts: list[int], found: Recording) -> None:
    """Fills in requests and marks.

    Args:
        history: the allocator's entries, the oldest first.
        counts: for each mark, the number of entries before it whose kind is in `COUNTED`.
        found: the recording to fill in.
    """
    seen, waiting = 0, iter(counts)
    due = next(waiting, None)
    for entry in history:
        action = entry["action"]
        if action in COUNTED:
            while due is not None and due <= seen:
                found.marks.append(len(found.requests))
                due = next(waiting, None)
            seen += 1
        if action == "alloc":
            found.requests.append(AllocatorRequest(entry["addr"], entry["size"]))
        elif action == "free_completed":
            found.requests.append(AllocatorRequest(entry["addr"], -entry["size"]))
    found.marks += [len(found.requests)] * (len(counts) - len(found.marks))
