"""Isolation: a trace leaves nothing behind in the user's objects, and cannot hang.

It runs on a copy of the model, the optimizer and a loss module. What the user's functions hold beside these is not
copied: a closure, a bound object, a table in a module. There a fake tensor could stay. So on a host the trace runs in a
forked process (forked_trace.py). Elsewhere, where that is not sound, only functions that hold nothing are traced, and
afterwards no fake tensor may be left.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autofit.memory.trace import Trace
from autofit.probing import forked_trace as apart
from autofit.tracing.self_contained import check_nothing_left, check_self_contained, fake_tensors
from autofit.workloads.workload import Workload

LIMIT_S = 30.0
"""A trace takes 0.2 to 3 s; one that takes longer than this is one of a step that loops over samples, or for ever."""
FORKED_RATIO = 1.5
"""A process that traces is killed after so many times the limit: it may hang where the trace cannot end it."""


def isolated(work: Callable[[], Trace], workload: Workload, on_host: bool, limit_s: float = LIMIT_S) -> Trace:
    """Returns what `work`, a trace of `workload`, returns.

    Args:
        work: traces; ends by itself after `limit_s`, unless it hangs.
        workload: the user's objects.
        on_host: whether no device but the host is involved, so that a process may be forked.
        limit_s: seconds that the trace may take.

    Raises:
        Untraceable: as `work`; or the workload holds what a trace could change, or something was left behind.
        SpaceError: as `work`.
    """
    if on_host and apart.POSSIBLE:
        return apart.traced_apart(work, FORKED_RATIO * limit_s)
    containers = check_self_contained(workload)
    before, there = [each.copy() for each in containers], fake_tensors()
    try:
        with _quiet():
            found = work()
    finally:
        for each, entries in zip(containers, before, strict=True):
            _put_back(each, entries)
    check_nothing_left(there)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps logging quiet: torch logs thirty lines about what a fake tensor cannot do, which is no failure here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _put_back(container: Any, entries: Any) -> None:
    """Gives a container the entries that it had, where they have changed."""
    if container == entries:
        return
    container.clear()
    if isinstance(container, list):
        container.extend(entries)
    else:
        container.update(entries)
