"""B18: what a person sees of a search fits the terminal, and tells phase, trials, best, memory and time left."""

from collections.abc import Callable

import pytest

from autofit.core.budget import Clock
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.event import Event
from autofit.trackers.search_state import SearchState, Yardstick

OWN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 8, "precision": "fp32", "checkpointed_blocks": 0})
BEST = OWN.replace(micro_batch_size=8, accumulation_steps=4, precision="bf16", checkpointed_blocks=2)
MIB = 2**20


class Time:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def trial(plan: Plan, samples_per_s: float = 100.0, peak_mib: int = 48, status: Status = Status.MEASURED) -> Trial:
    memory = Memory(allocated_bytes=peak_mib * MIB, judged_bytes=peak_mib * MIB, judged_by="test")
    run = Measurement(step_times_s=(32 / samples_per_s,), samples_per_step=32, memory=memory)
    reason = "" if status is Status.MEASURED else "tried to allocate 20.00 MiB " * 20
    outcome = Outcome(status=status, measurement=run if status is Status.MEASURED else None, reason=reason)
    return Trial(number=0, plan=plan, outcome=outcome, purpose=Purpose.PROBE)


def state(time_s: float | None = 120.0) -> tuple[SearchState, Time]:
    time = Time()
    return SearchState(Yardstick(Objective(), OWN, 72 * MIB, time_s, Clock(time))), time


EVENTS = (
    Event("stage", "3 plans are known from earlier runs"),
    Event("stage", "searching"),
    Event("trial", "", trial(OWN), 1),
    Event("trial", "", trial(BEST, 132.0, 54), 2),
    Event("trial", "", trial(BEST.replace(micro_batch_size=32), status=Status.OUT_OF_MEMORY), 3),
    Event("trial", "", trial(OWN.replace(precision="bf16"), 90.0), 4),
    Event("skipped", "", trial(BEST.replace(micro_batch_size=64), status=Status.SKIPPED), 4),
)


def told(state: SearchState, *events: Event, width: int = 100) -> list[str]:
    return [line for event in events for line in state.tell(event)(width)]


def test_b18_finished_trials_are_rows_with_gain_speed_and_peak_before_the_plan() -> None:
    assert told(state()[0], *EVENTS) == [
        "autofit: 3 plans are known from earlier runs",
        "         gain  samples/s        peak  micro batch x accumulation steps, changes",
        "    1   1.00x        100      48 MiB  your own setting",
        "    2   1.32x        132      54 MiB  8 x 4, precision=bf16, checkpointed_blocks=2",
        "    3                  out of memory  32 x 4, precision=bf16, checkpointed_blocks=2: tried to allo..",
        "    4   0.90x         90      48 MiB  4 x 8, precision=bf16",
    ]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (59, "searching  4 trials  best 1.32x at 54 of 72 MiB  0:47 left"),
        (99, "searching  4 trials  best 1.32x at 54 of 72 MiB  0:47 left"),
        (52, "searching 4  best 1.32x at 54 of 72 MiB  0:47 left"),
        (40, "searching 4  best 1.32x at 54 of 72 Mi.."),
    ],
)
def test_b18_the_live_line_tells_phase_trials_best_memory_and_time_left(width: int, line: str) -> None:
    it, time = state()
    told(it, *EVENTS)
    time.seconds = 73.0
    assert it.live(width) == line


@pytest.mark.parametrize("width", [20, 40, 59, 99, 199])
def test_b18_no_line_is_wider_than_the_terminal(width: int) -> None:
    it, _ = state()
    for event in (
        *EVENTS,
        Event("stage", "racing 3 plans in interleaved blocks"),
        Event("race", "round 3: 2 plans left"),
    ):
        assert all(len(line) <= width for line in told(it, event, width=width))
        assert len(it.live(width)) <= width


def test_b18_the_phase_is_short_where_there_is_little_room() -> None:
    it, _ = state()
    told(it, *EVENTS, Event("stage", "racing 3 plans in interleaved blocks"))
    assert it.live(99).startswith("racing 3 plans in interleaved blocks  4 trials  best 1.32x")
    assert it.live(60) == "racing  4 trials  best 1.32x at 54 of 72 MiB  2:00 left"
    told(it, Event("race", "round 3: 2 plans left"))
    assert it.live(99).startswith("racing, round 3: 2 plans left  4 trials")
    assert it.live(60).startswith("racing  4 trials")


@pytest.mark.parametrize(
    ("limit_s", "elapsed_s", "said"),
    [(None, 5.0, "0:05"), (None, 3725.0, "1:02:05"), (10.0, 12.0, "0:00 left"), (600.0, 1.0, "9:59 left")],
)
def test_time_is_what_is_left_of_the_budget_or_what_went_by(limit_s: float | None, elapsed_s: float, said: str) -> None:
    it, time = state(limit_s)
    time.seconds = elapsed_s
    assert it.live(80) == f"starting  0 trials  {said}"


def test_without_the_users_own_setting_the_best_is_its_throughput() -> None:
    it, _ = state()
    told(it, Event("trial", "", trial(BEST, 52384.7, 54), 1))
    assert it.live(80) == "starting  1 trial  best 52,380 samples/s at 54 of 72 MiB  2:00 left"


@pytest.mark.parametrize(
    ("peak_mib", "limit_mib", "said"),
    [(1123, 1536, "1.1 of 1.5 GiB"), (53, 2048, "53 MiB of 2 GiB"), (1010, 1020, "1010 of 1020 MiB")],
)
def test_the_unit_is_told_once_and_figures_are_short(peak_mib: int, limit_mib: int, said: str) -> None:
    it = SearchState(Yardstick(Objective(), OWN, limit_mib * MIB, 120.0, Clock(Time())))
    told(it, Event("trial", "", trial(OWN, 100.0, peak_mib), 1))
    assert it.live(60) == f"starting  1 trial  best 1.00x at {said}  2:00 left"


def test_a_stage_is_wrapped_and_not_cut() -> None:
    ended = Event("stage", "search ended: the 1 min 29 s left of 3 min 0 s are kept for the race and the proof")
    assert told(state()[0], ended, width=59) == [
        "autofit: search ended: the 1 min 29 s left of 3 min 0 s are",
        "         kept for the race and the proof",
    ]


def test_a_proof_is_a_row_and_no_trial() -> None:
    it, _ = state()
    (_, _, row) = told(it, Event("trial", "", trial(OWN), 1), Event("proof", "", trial(BEST, 500.0), 1))
    assert row.startswith("proof   5.00x        500      48 MiB  8 x 4")
    assert "best 1.00x" in it.live(80)


def test_wide_letters_count_twice() -> None:
    failed = trial(OWN, status=Status.OUT_OF_MEMORY)
    wide = failed.model_copy(update={"outcome": failed.outcome.model_copy(update={"reason": "内存不足" * 30})})
    cells: Callable[[str], int] = lambda line: sum(2 if letter > "\u2e80" else 1 for letter in line)  # noqa: E731
    assert all(cells(line) <= 80 for line in told(state()[0], Event("trial", "", wide, 1), width=80))
