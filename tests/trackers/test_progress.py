"""The progress of a search on a terminal and elsewhere, and its signs of life."""

import io
import os
import re
import threading
import time

import pytest

from autofit.core.budget import Budget, Clock
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.search.evidence import SearchEvidence
from autofit.search.request import Event, Request
from autofit.trackers.live_line import SearchState
from autofit.trackers.progress import CHOOSING, LiveLine, Progress, _drawing, heartbeat, waiting, watched


def test_each_event_is_a_sign_of_life_and_a_wait_is_one_of_its_own() -> None:
    watch = Watchdog(Clock())
    listen = heartbeat(watch)
    listen(Event("busy", "waiting for the study"))
    assert watch.doing == WAITING
    listen(Event("stage", "searching"))
    assert watch.doing == CHOOSING


def test_a_message_about_a_lock_becomes_an_event() -> None:
    watch, events = Watchdog(Clock()), list[Event]()
    waiting(watch, events.append)("waiting up to 5 s for the GPU")
    assert watch.doing == WAITING
    assert [(event.kind, event.text) for event in events] == [("busy", "waiting up to 5 s for the GPU")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.trackers.progress.TICK_S", 0.01)


def test_the_line_is_drawn_anew_without_events(quick: None) -> None:
    count, stream = iter(range(10**6)), Terminal()
    line = LiveLine(stream, lambda width: f"tick {next(count)}")
    until = time.monotonic() + 20
    while "tick 3" not in stream.getvalue() and time.monotonic() < until:
        time.sleep(0.01)
    line.close()
    text = stream.getvalue()
    assert "tick 3" in text
    assert text.split("\r")[-1].replace("\x1b[K", "").strip() == ""
    assert "autofit progress" not in [thread.name for thread in threading.enumerate()]


def test_it_is_as_wide_as_the_terminal_is_now(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    line = LiveLine(stream, lambda width: f"[{width}]")
    line.scroll(lambda width: [f"row {width}"])
    monkeypatch.setenv("COLUMNS", "100")
    line.scroll(lambda width: [f"row {width}"])
    line.close()
    assert "row 59\n" in stream.getvalue()
    assert "row 99\n" in stream.getvalue()
    assert "[99]" in stream.getvalue()


def test_a_line_that_a_narrower_terminal_has_wrapped_is_cleared_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    line = LiveLine(stream, lambda width: "x" * width)
    line.scroll(lambda width: [])
    before = len(stream.getvalue())
    monkeypatch.setenv("COLUMNS", "40")  # 99 cells are 3 rows now, and the cursor is in the last
    line.scroll(lambda width: [])
    line.close()
    assert stream.getvalue()[before:].startswith("\x1b[2K" + "\x1b[A\x1b[2K" * 2 + "\r")
    assert max(map(len, re.sub(r"\x1b\[2?[AK]", "", stream.getvalue()[before:]).split("\r"))) == 39  # nothing is padded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_is_forked_while_the_line_is_drawn_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.trackers.progress.TICK_S", 0.0)
    line = LiveLine(Terminal(), lambda width: "x" * width)
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                free = _drawing.acquire(timeout=5)
                os._exit(0 if free else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        line.close()


PLAN = Plan(values={"micro_batch_size": 16, "accumulation_steps": 2})
ASKED = SearchEvidence.model_construct(
    baseline=PLAN.replace(micro_batch_size=8), budget=Budget(memory_bytes=2**23), objective=Objective()
)
SHORT, SPEED = "micro batch 16, precision=bf16", "64 samples/s, peak 3 MiB"
OUT_OF_MEMORY = Outcome(status=Status.OUT_OF_MEMORY, reason="tried 2 GiB")


def trial(outcome: Outcome, purpose: Purpose = Purpose.PROBE) -> Trial:
    return Trial(number=0, plan=PLAN, outcome=outcome, purpose=purpose)


def measured() -> Outcome:
    memory = Memory(allocated_bytes=1, judged_bytes=3 * 2**20, judged_by="test")
    measurement = Measurement(step_times_s=(0.5,), samples_per_step=32, memory=memory)
    return Outcome(status=Status.MEASURED, measurement=measurement)


def shown(stream: io.StringIO, *events: Event) -> str:
    progress = Progress(stream, SearchState(Clock()))
    for event in events:
        progress(event)
    progress.close()
    return stream.getvalue()


def test_events_are_lines_where_there_is_no_terminal() -> None:
    text = shown(
        io.StringIO(),
        Event("stage", "searching"),
        Event("trial", f"{SHORT}: {SPEED}", trial(measured()), 1),
        Event("trial", f"{SHORT}: out of memory: tried 2 GiB", trial(OUT_OF_MEMORY), 2),
        Event("answer", f"{SHORT}: the answer so far", plan=PLAN),
        Event("running", "running it", phase="proof", plan=PLAN),
        Event("race", "round 3: 2 plans left", None, 2),
        Event("proof", f"{SHORT}: {SPEED}", trial(measured(), Purpose.PROOF), 2),
    )
    assert text.splitlines() == [
        "autofit: searching",
        f"autofit: trial 1: {SHORT}: {SPEED}",
        f"autofit: trial 2: {SHORT}: out of memory: tried 2 GiB",
        f"autofit: proof of {SHORT}: {SPEED}",
    ]


def test_skipped_plans_are_no_lines() -> None:
    skipped = trial(Outcome(status=Status.SKIPPED, reason="cannot fit"))
    assert shown(io.StringIO(), Event("skipped", "", skipped)) == ""


def test_a_terminal_gets_finished_trials_and_a_live_line_that_is_taken_away() -> None:
    text = shown(
        Terminal(),
        Event("start", "searching plans", asked=ASKED),
        Event("stage", "searching", phase="search"),
        Event("trial", f"{SHORT}: {SPEED}", trial(measured()), 1),
        Event("answer", "16 x 2: the answer so far", plan=PLAN),
        Event("skipped", "", trial(Outcome(status=Status.SKIPPED, reason="cannot fit")), 1),
        Event("trial", f"{SHORT}: {SPEED}", trial(measured()), 2),
        Event("proof", f"{SHORT}: {SPEED}", trial(measured(), Purpose.PROOF), 2),
    )
    assert "\r" in text
    assert "search  2 trials  peak 3 of 8 MiB  64 samples/s so far, 0 s elapsed" in text
    assert "the answer so far" not in text
    assert "3 trials" not in text
    assert "cannot fit" not in text
    left = [line.split("\r")[-1].removesuffix("\x1b[K") for line in text.split("\n")]
    assert left[:3] == [
        f"    1          {SHORT}: {SPEED}",
        f"    2          {SHORT}: {SPEED}",
        f"proof          {SHORT}: {SPEED}",
    ]
    assert left[3:] == [""]  # nothing is left of the live line


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    event = Event("trial", f"{SHORT}: {SPEED}", trial(measured()), 1)
    assert shown(Terminal(), event) == f"autofit: trial 1: {SHORT}: {SPEED}\n"


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    failed = Event("trial", "", trial(OUT_OF_MEMORY), 1)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in shown(Terminal(), failed)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "m" not in [code[-1] for code in re.findall(r"\x1b\[[\d;]*[A-Za-z]", shown(Terminal(), failed))]


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_control_sequences_of_the_users_code_are_taken_out(stream: type[io.StringIO]) -> None:
    outcome = Outcome(status=Status.USER_ERROR, reason="\x1b[2J\x07bad\nsecond\x9b\u202e line")
    said = f"{SHORT}: {outcome.status.value}: {outcome.reason}"
    text = shown(stream(), Event("trial", said, trial(outcome), 1), Event("stage", "racing \u202e\x9b\x1b[2J it"))
    assert ": bad second line" in text
    assert not {"\x07", "\x9b", "\u202e"} & set(text)
    assert "\x1b[2J" not in text


def test_what_is_wanted_decides_who_listens(capsys: pytest.CaptureFixture[str]) -> None:
    event, heard = Event("stage", "searching"), list[Event]()
    with watched(heard.append, Request(), Watchdog(Clock())) as listen:
        listen(event)
    with watched(False, Request(), Watchdog(Clock())) as listen:
        listen(event)
    assert heard == [event]
    assert capsys.readouterr() == ("", "")
    with watched(True, Request(), Watchdog(Clock())) as listen:
        listen(event)
    assert capsys.readouterr() == ("", "autofit: searching\n")
