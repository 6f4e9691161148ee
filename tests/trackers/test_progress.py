"""Progress shows events: lines where there is no terminal, a live line on one, nothing when not wanted."""

import io
import re

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.event import Event
from autofit.trackers.progress import Progress

PLAN = Plan(values={"micro_batch_size": 16, "accumulation_steps": 2})
SHORT, SPEED = "micro batch 16, precision=bf16", "64 samples/s, peak 3 MiB"
OUT_OF_MEMORY = Outcome(status=Status.OUT_OF_MEMORY, reason="tried 2 GiB")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def trial(outcome: Outcome, purpose: Purpose = Purpose.PROBE) -> Trial:
    return Trial(number=0, plan=PLAN, outcome=outcome, purpose=purpose)


def measured() -> Outcome:
    memory = Memory(allocated_bytes=1, judged_bytes=3 * 2**20, judged_by="test")
    measurement = Measurement(step_times_s=(0.5,), samples_per_step=32, memory=memory)
    return Outcome(status=Status.MEASURED, measurement=measurement)


def shown(stream: io.StringIO, *events: Event) -> str:
    progress = Progress(stream)
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
        Event("stage", "searching", phase="search"),
        Event("trial", "", trial(measured()), 1),
        Event("answer", "16 x 2: the answer so far", plan=PLAN),
        Event("skipped", "", trial(Outcome(status=Status.SKIPPED, reason="cannot fit")), 1),
        Event("trial", "", trial(measured()), 2),
        Event("proof", "", trial(measured(), Purpose.PROOF), 2),
    )
    assert "\r" in text
    assert "search  2 trials  peak 3 MiB  64 samples/s so far, 0 s elapsed" in text
    assert "the answer so far" not in text
    assert "3 trials" not in text
    assert "cannot fit" not in text
    left = [line.split("\r")[-1].removesuffix("\x1b[K") for line in text.split("\n")]
    assert left[1:4] == [
        "    1                 64       3 MiB  16 x 2",
        "    2                 64       3 MiB  16 x 2",
        "proof             proven       3 MiB  16 x 2",
    ]
    assert left[4:] == [""]  # nothing is left of the live line


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
    with Progress.of(heard.append) as listen:
        listen(event)
    with Progress.of(False) as listen:
        listen(event)
    assert heard == [event]
    assert capsys.readouterr() == ("", "")
    with Progress.of(True) as listen:
        listen(event)
    assert capsys.readouterr() == ("", "autofit: searching\n")
