"""A forked trace brings back what it found and nothing else, and cannot hang (promises 4 and 5)."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from autofit.core.errors import SpaceError, Untraceable
from autofit.memory.trace import Trace
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.tracing.isolation import IS_SUPPORTED, trace_in_fork
from tests.leaks import State
from tests.memory.traces import Script


def small() -> Trace:
    script = Script(micro_batch_size=4)
    script.take(8)
    return script.trace()


def fails(error: BaseException) -> Callable[[], Trace]:
    def work() -> Trace:
        raise error

    return work


forked = pytest.mark.skipif(not IS_SUPPORTED, reason="forks, which is done on Linux only")


@forked
def test_a_trace_comes_back_and_what_else_was_done_does_not() -> None:
    kept: list[int] = []

    def work() -> Trace:
        kept.append(1)
        return small()

    assert trace_in_fork(work, 60.0) == small()
    assert kept == []


@forked
def test_a_large_trace_comes_back_whole() -> None:
    script = Script()
    for size in range(200_000):
        script.take(size)
    found = script.trace()
    assert trace_in_fork(lambda: found, 60.0) == found


@forked
@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (Untraceable("no", "train.py:7"), Untraceable, r"no \(train\.py:7\)"),
        (SpaceError("no such k"), SpaceError, "no such k"),
        (KeyError("row"), Untraceable, "KeyError: 'row'"),
        (SystemExit(3), Untraceable, "SystemExit"),
    ],
)
def test_errors_come_back_as_they_are(error: BaseException, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        trace_in_fork(fails(error), 60.0)


@forked
def test_one_that_hangs_or_dies_is_given_up_and_leaves_no_process() -> None:
    began, before = time.monotonic(), State.now()
    with pytest.raises(Untraceable, match="not finished after 1 s"):
        trace_in_fork(lambda: time.sleep(600) or small(), 1.0)  # type: ignore[func-returns-value]  # sleep gives None
    assert time.monotonic() - began < 60
    with pytest.raises(Untraceable, match="its process died"):
        trace_in_fork(lambda: os._exit(1), 60.0)
    assert not before.left_over()


@forked
@pytest.mark.parametrize("name", ["pipe", "fork", "close", "waitpid"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGRTMAX])
def test_a_signal_at_any_moment_leaves_no_process_and_no_descriptor(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a system call returns: Python runs a handler before the caller has the result."""
    me, real, before = os.getpid(), getattr(os, name), State.now()

    def interrupted(*arguments: int) -> Any:
        found = real(*arguments)
        if os.getpid() == me:
            signal.raise_signal(number)
        return found

    def raised(number: int, frame: object) -> None:
        raise Overdue

    handlers = [signal.signal(each, raised) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGRTMAX)]
    try:
        monkeypatch.setattr(os, name, interrupted)
        with pytest.raises(Overdue):
            trace_in_fork(small, 60.0)
    finally:
        monkeypatch.undo()
        for each, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGRTMAX), handlers, strict=True):
            signal.signal(each, handler)
    assert before.left_over() == []


@forked
def test_a_search_without_time_does_not_wait_for_the_trace() -> None:
    with Watchdog() as watch, pytest.raises(Overdue):
        watch.allowed(lambda: trace_in_fork(lambda: time.sleep(600) or small(), 600.0), 0.5)  # type: ignore[func-returns-value]
    assert watch.clock.elapsed_s < 60
