"""A search in this process: who is called, when and in which thread, and what the result carries."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import autofit
from autofit import in_process, locks
from autofit.core.budget import Clock
from autofit.core.recommendation import Recommendation
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.event import Event
from tests.probing import targets
from tests.recorded import recorded_search


def test_listeners_are_called_in_the_callers_thread_and_the_result_is_the_answer() -> None:
    events: list[Event] = []
    threads = set[int]()

    def listen(event: Event) -> None:
        events.append(event)
        threads.add(threading.get_ident())

    fit = autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, global_batch_size=16,
        memory_budget="256MiB", strategies=["batching"], listeners=[listen],
    )  # fmt: skip
    assert threads == {threading.get_ident()}
    assert (events[0].kind, events[-1].kind) == ("start", "result")
    assert "waiting" not in {event.kind for event in events}
    result = events[-1].result
    assert result is not None
    assert result.recommendation == fit.recommendation
    asked = events[0].asked
    assert asked is not None
    assert "listeners" not in asked.command
    assert asked.command.startswith("autofit.tune(model, loader, ")


def test_a_search_without_a_last_event_still_has_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded_search().recommendation
    assert found is not None
    monkeypatch.setattr(in_process, "search", lambda *_: found)
    fit = autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["batching"],
    )  # fmt: skip
    assert fit.plan == found.plan
    assert fit.result is None


def test_the_wait_for_the_device_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, waits = recorded_search().recommendation, list[float]()
    assert found is not None

    @contextmanager
    def held(*_: object) -> Iterator[None]:
        time.sleep(0.3)
        yield

    def search(bench: object, request: object, listeners: object, clock: Clock) -> Recommendation:
        waits.append(clock.waited_s)
        return found

    monkeypatch.setattr(locks, "held", held)
    monkeypatch.setattr(in_process, "search", search)
    autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["batching"],
    )  # fmt: skip
    assert len(waits) == 1
    assert 0.3 <= waits[0] < 3


def test_a_wait_for_another_tuner_is_reported_and_is_not_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    found, phases, events = recorded_search().recommendation, list[str](), list[Event]()
    assert found is not None

    class Watched(Watchdog):
        def beat(self, phase: str) -> None:
            phases.append(phase)
            super().beat(phase)

    @contextmanager
    def held(key: str, what: str, wait_s: float, say: Callable[[str], None]) -> Iterator[None]:
        say(f"waiting for {what}")
        yield

    monkeypatch.setattr(in_process, "Watchdog", Watched)
    monkeypatch.setattr(locks, "held", held)
    monkeypatch.setattr(in_process, "search", lambda *_: found)
    autofit.tune(
        targets.mlp(), targets.vectors(), device="cpu", study=":memory:", progress=events.append,
        memory_budget="256MiB", strategies=["batching"],
    )  # fmt: skip
    assert phases[0] == WAITING
    assert [event.text[:12] for event in events if event.kind == "busy"] == ["waiting for "]
