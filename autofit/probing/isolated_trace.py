"""Isolation of a trace: it leaves nothing behind in the user's objects and cannot hang.

A trace runs on a copy of the model, the optimizer and the loss module. Other objects that the user's functions hold are
not copied: closures, bound objects, tables in a module. A fake tensor could stay there. So on a host the trace runs in
a forked process (forked_trace.py). On other devices, where forking is not sound, only functions that hold nothing are
traced, and no fake tensor may be left afterwards.
"""

from collections.abc import Callable
from typing import Any

from autofit.memory.trace import Trace
from autofit.probing import forked_trace
from autofit.tracing.self_contained import check_nothing_left, check_self_contained, fake_tensors
from autofit.workloads.workload import Workload

LIMIT_S = 30.0
"""Time limit of a trace. A trace takes 0.2 to 3 s; a longer one belongs to a step that loops over samples or never
ends."""
FORKED_RATIO = 1.5
"""Multiple of the limit after which a tracing process is killed, since it may hang where the trace cannot end it."""


def isolated(work: Callable[[], Trace], workload: Workload, on_host: bool, limit_s: float = LIMIT_S) -> Trace:
    """Runs `work`, a trace of `workload`, and returns its result.

    Args:
        work: makes the trace. It ends by itself after `limit_s`, unless it hangs.
        workload: the user's objects.
        on_host: whether only the host is involved, so that a process may be forked.
        limit_s: seconds that the trace may take.

    Raises:
        Untraceable: `work` raised it; or the workload holds objects that a trace could change, or a fake tensor was
            left behind.
        SpaceError: `work` raised it.
    """
    if on_host and forked_trace.IS_SUPPORTED:
        return forked_trace.trace_in_fork(work, FORKED_RATIO * limit_s)
    containers = check_self_contained(workload)
    before, existing = [each.copy() for each in containers], fake_tensors()
    try:
        found = work()
    finally:
        for each, entries in zip(containers, before, strict=True):
            _restore(each, entries)
    check_nothing_left(existing)
    return found


def _restore(container: Any, entries: Any) -> None:
    """Restores the entries of a container if they have changed."""
    if container == entries:
        return
    container.clear()
    if isinstance(container, list):
        container.extend(entries)
    else:
        container.update(entries)
