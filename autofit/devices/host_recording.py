"""Host recording: the requests to torch's CPU allocator, with their addresses, from the Kineto profiler.

The legacy profiler, which host_meter.py uses, is faster but has no addresses, so that releases of the same size cannot
be distinguished. Both leave out memory that existed before, and threads that the user's code starts.

Torch keeps the size of each recorded block until its release is recorded too. If the release is not, and another block
gets the address, the release of that one is recorded with the size of the first. It is left out here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState, _EventType, _ExperimentalConfig

from autofit.core.errors import Untraceable
from autofit.devices.base import AllocatorRequest, Recording

MARK = "autofit: mark"
LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "99"
"""Environment variable and value that keep the profiler's library from printing. It is read once, on first use."""


@contextmanager
def recording() -> Iterator[Recording]:
    """Records the requests to the CPU allocator while the context is open.

    Raises:
        Untraceable: a profiler is already running, or this build of torch has none.
    """
    if not torch.profiler.kineto_available():
        raise Untraceable("this build of torch has no profiler that records addresses", "while recording a short run")
    if torch._C._autograd._profiler_enabled():
        raise Untraceable("another profiler is running, and only one can run", "while recording a short run")
    # Memory only: no shapes, stacks or operation counts.
    config = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
    with _silent():
        torch._C._autograd._prepare_profiler(config, {ProfilerActivity.CPU})
    torch._C._autograd._enable_profiler(config, {ProfilerActivity.CPU})
    found = Recording(_mark)
    torch._C._autograd._enable_record_function(False)  # records of operators take ten times the memory of allocations
    try:
        yield found
    finally:
        torch._C._autograd._enable_record_function(True)
        result = torch._C._autograd._disable_profiler()
    _read(result.experimental_event_tree(), found)


def _mark() -> None:
    torch._C._autograd._enable_record_function(True)
    with torch.autograd.profiler.record_function(MARK):
        torch._C._autograd._enable_record_function(False)


def _read(roots: list[Any], found: Recording) -> None:
    """Fills in requests and marks from the profiler's tree of events. Threads are merged by time."""
    live: set[int] = set()
    for event in sorted(_all(roots), key=lambda event: event.start_time_ns):
        if event.tag == _EventType.Allocation:
            memory = event.typed[1]
            if memory.device.type != "cpu":
                continue
            if memory.alloc_size > 0:
                live.add(memory.ptr)
            elif memory.ptr in live:
                live.remove(memory.ptr)
            else:
                continue
            found.requests.append(AllocatorRequest(memory.ptr, memory.alloc_size))
        elif event.name == MARK:
            found.marks.append(len(found.requests))


def _all(roots: list[Any]) -> Iterator[Any]:
    """Yields every event, a parent before its children."""
    waiting = list(reversed(roots))
    while waiting:
        event = waiting.pop()
        yield event
        waiting += reversed(event.children)


@contextmanager
def _silent() -> Iterator[None]:
    """Keeps the profiler's library from printing, unless the user has set its log level."""
    before = os.environ.get(LOG_LEVEL)
    os.environ[LOG_LEVEL] = SILENT if before is None else before
    try:
        yield
    finally:
        if before is None:
            del os.environ[LOG_LEVEL]
