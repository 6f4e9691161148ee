"""The lines of a search: the live line, its parts, and the rows of finished trials."""

import re

import pytest

from autofit.core.answer import Ratio
from autofit.core.budget import Budget, Clock
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_outcome, describe_plan
from autofit.probing.watchdog import WAITING
from autofit.search.evidence import Placing, SearchEvidence
from autofit.search.request import Event
from autofit.terminal import cells
from autofit.trackers.live_line import (
    SearchState,
    of_budget,
    short_plan,
    short_time,
)

BASELINE = Plan(values={"micro_batch_size": 4, "accumulation_steps": 8, "precision": "fp32", "checkpointed_blocks": 0})
BEST = BASELINE.replace(micro_batch_size=8, accumulation_steps=4, precision="bf16", checkpointed_blocks=2)
MIB = 2**20


class Time:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def trial(
    plan: Plan,
    samples_per_s: float = 100.0,
    peak_mib: int = 48,
    status: Status = Status.MEASURED,
    reason: str = "tried to allocate 20.00 MiB " * 20,
) -> Trial:
    memory = Memory(allocated_bytes=peak_mib * MIB, judged_bytes=peak_mib * MIB, judged_by="test")
    run = Measurement(step_times_s=(32 / samples_per_s,), samples_per_step=32, memory=memory)
    measured = status is Status.MEASURED
    outcome = Outcome(status=status, measurement=run if measured else None, reason="" if measured else reason)
    return Trial(number=0, plan=plan, outcome=outcome, purpose=Purpose.PROBE)


def state(
    time_s: float | None = 120.0, max_trials: int | None = None, doing: str = "", limit_mib: int = 72
) -> tuple[SearchState, Time]:
    time = Time()
    found = SearchState(Clock(time), time_s, lambda: doing)
    told(found, started(max_trials, limit_mib))
    return found, time


def started(max_trials: int | None = None, limit_mib: int = 72) -> Event:
    """The first event of a search, which carries what was asked."""
    budget = Budget(memory_bytes=limit_mib * MIB, max_trials=max_trials)
    asked = SearchEvidence.model_construct(baseline=BASELINE, budget=budget, objective=Objective())
    return Event("start", "searching plans", asked=asked)


def running(plan: Plan, mib: float, bounded: bool = True, phase: str = "search", so_far: float | None = 1.32) -> Event:
    bound = round(mib * MIB) if bounded else None
    estimate = Estimate(value_bytes=round(mib * MIB), lower_bytes=bound)
    return Event("running", f"running {plan}", phase=phase, plan=plan, estimate=estimate, so_far=so_far)


def answered(plan: Plan, so_far: float | None) -> Event:
    return Event("answer", f"{plan}: the answer so far", phase="search", plan=plan, so_far=so_far)


def raced(*gains: tuple[Plan, Ratio], text: str = "round 4: 2 plans left") -> Event:
    standings = tuple(Placing(plan=plan, gain=gain) for plan, gain in gains)
    return Event("race", text, phase="race", standings=standings, so_far=1.32)


def ran(
    plan: Plan,
    samples_per_s: float = 100.0,
    peak_mib: int = 48,
    done: int = 1,
    so_far: float | None = None,
    status: Status = Status.MEASURED,
    kind: str = "trial",
) -> Event:
    """The event of a finished trial, with the text that a search gives it."""
    found = trial(plan, samples_per_s, peak_mib, status)
    text = f"{describe_plan(plan, BASELINE)}: {describe_outcome(found.outcome, 'samples')}"
    return Event(kind, text, found, done, phase="search" if kind == "trial" else kind, so_far=so_far)


EVENTS = (
    Event("stage", "3 plans are known from earlier runs", phase="search"),
    Event("stage", "searching", phase="search"),
    ran(BASELINE),
    answered(BASELINE, 1.0),
    ran(BEST, 132.0, 54, 2, 1.0),
    answered(BEST, 1.32),
    ran(BEST.replace(micro_batch_size=32), done=3, so_far=1.32, status=Status.OUT_OF_MEMORY),
    ran(BASELINE.replace(precision="bf16"), 90.0, 48, 4, 1.32),
    Event("skipped", "", trial(BEST.replace(micro_batch_size=64), status=Status.SKIPPED), 4, so_far=1.32),
)


def told(state: SearchState, *events: Event, width: int = 100) -> list[str]:
    return [line for event in events for line in state.tell(event)(width)]


def test_b18_finished_trials_are_lines_and_skipped_ones_are_not() -> None:
    lines = told(state()[0], *EVENTS)
    assert [*lines[:5], lines[-1]] == [
        "autofit: 3 plans are known from earlier runs",
        "    1   1.00x  micro batch 4 x 8 accumulation steps = 32: 100 samples/s, peak 48 MiB",
        "    2   1.32x  micro batch 8 x 4 accumulation steps = 32, precision=bf16, checkpointed_blocks=2: 132",
        "       samples/s, peak 54 MiB",
        "    3  failed  micro batch 32 x 4 accumulation steps = 128, precision=bf16, checkpointed_blocks=2:",
        "    4   0.90x  micro batch 4 x 8 accumulation steps = 32, precision=bf16: 90 samples/s, peak 48 MiB",
    ]
    assert lines[-2].endswith("tried to allocate 20.00 MiB..")


def test_extreme_ratios_are_short_and_stay_in_their_column() -> None:
    it = state()[0]
    slow = ran(BASELINE.replace(precision="bf16"), 0.3, done=3)
    lines = told(it, ran(BASELINE), ran(BEST, 101_965.0, done=2), slow, width=200)
    assert [line[:13] for line in lines] == ["    1   1.00x", "    2  1,020x", "    3  <0.01x"]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (140, "search  4 trials  now 16 x 2, precision=bf16: est. 61 of 72 MiB  ######----  1.32x so far, 47 s left"),
        (99, "search  4 trials  now est. 61 of 72 MiB  1.32x so far, 47 s left"),
        (79, "search  4 trials  now est. 61 of 72 MiB  1.32x so far, 47 s left"),
        (59, "search  4  ~61/72 MiB  1.32x so far, 47 s left"),
        (39, "search  4  ~61/72 MiB  1.32x, 47 s left"),
        (36, "search  ~61/72 MiB  1.32x, 47 s left"),
        (33, "search  1.32x, 47 s left"),
    ],
)  # fmt: skip
def test_b18_the_live_line_has_phase_trials_memory_the_answer_and_the_time_left(width: int, line: str) -> None:
    it, time = state()
    told(it, *EVENTS, running(BASELINE.replace(micro_batch_size=16, accumulation_steps=2, precision="bf16"), 61))
    time.seconds = 73.0
    assert it.live(width) == line


@pytest.mark.parametrize("width", range(0, 120, 7))
def test_the_live_line_fits_at_any_width(width: int) -> None:
    it, _ = state()
    told(it, *EVENTS, running(BEST, 61))
    assert cells(it.live(width)) <= width


def test_wide_letters_count_twice() -> None:
    wide = Event("trial", "内存不足" * 30, trial(BASELINE, status=Status.OUT_OF_MEMORY), 1, phase="search")
    assert all(cells(line) <= 80 for line in told(state()[0], wide, width=80))


@pytest.mark.parametrize("width", [20, 39, 59, 99, 199])
def test_b18_no_line_is_wider_than_the_terminal(width: int) -> None:
    hostile = "\x1b[2J\x07内存不足 e\u0301\u202e\r\n" + "x" * 10_000
    it, _ = state(doing="trace")
    for event in (
        *EVENTS,
        running(BEST, 61),
        Event("trial", f"{BEST}: {hostile}", trial(BEST, status=Status.USER_ERROR), 5, phase="search"),
        Event("stage", f"racing 3 plans in interleaved blocks {hostile}", phase="race"),
        Event("race", "round 3: 2 plans left", phase="race", gain=Ratio(value=1.3, low=1.2, high=1.4, pairs=8)),
        Event("waiting", f"no sign of life for 30 s: {hostile}"),
        running(BEST, 61, phase="proof"),
        ran(BEST, 132.0, 54, 5, kind="proof"),
    ):
        for line in [*told(it, event, width=width), it.live(width)]:
            assert cells(line) <= width
            assert not set(line) & {"\x1b", "\x07", "\r", "\n", "\u202e"}


def test_the_phase_has_details_where_there_is_room() -> None:
    it, _ = state(doing="import")
    assert it.live(99).startswith("survey: importing your code  ----------  2:00 left")
    assert it.live(30) == "survey  2:00 left"
    it, _ = state(doing="trace")
    told(it, Event("stage", "searching", phase="search"))
    assert it.live(99).startswith("search: estimating memory  0 trials")
    told(it, running(BASELINE, 9))
    assert it.live(99).startswith("search  0 trials  now baseline: est. 9 of 72 MiB")


def test_a_wait_for_another_tuner_is_a_phase() -> None:
    it, _ = state(doing=WAITING)
    busy = Event("busy", "waiting up to 1 min 0 s for the CPU, in use by process 9")
    assert told(it, busy) == [f"autofit: {busy.text}"]
    assert it.live(99).startswith("waiting for another tuner  ----------  2:00 left")
    assert it.live(30).startswith("waiting  ")


def test_before_an_answer_nothing_is_said_of_one_and_then_what_is_proven() -> None:
    it, time = state()
    time.seconds = 82.0
    told(it, running(BASELINE, 9, so_far=None))
    assert it.live(80) == "search  0 trials  now baseline: est. 9 of 72 MiB  #######---  38 s left"
    told(it, *EVENTS[2:4])
    assert it.live(80) == "search  1 trial  peak 48 of 72 MiB  #######---  baseline proven, 38 s left"
    told(it, *EVENTS[4:6])
    assert it.live(80) == "search  2 trials  peak 54 of 72 MiB  #######---  1.32x so far, 38 s left"


def test_a_faster_plan_that_is_not_proven_is_not_the_answer() -> None:
    it, _ = state()
    told(it, *EVENTS, ran(BEST.replace(micro_batch_size=16), 500.0, 66, 5, 1.32))
    assert it.live(80).endswith("  1.32x so far, 2:00 left")
    assert "peak 54 of 72 MiB" in it.live(80)


def test_an_answer_whose_last_proof_failed_is_taken_back() -> None:
    it, _ = state()
    told(it, *EVENTS, answered(BASELINE, 1.0))
    assert it.live(80).endswith("  baseline proven, 2:00 left")


def test_an_event_from_another_thread_says_nothing_of_the_answer() -> None:
    it, _ = state()
    told(it, *EVENTS, Event("waiting", "no sign of life for 20 s"))
    assert it.live(80).endswith("  1.32x so far, 2:00 left")


def test_once_the_answer_has_raced_its_gain_is_that_of_the_race_with_its_interval() -> None:
    it, _ = state()
    told(it, *EVENTS, raced((BEST, Ratio(value=1.4, low=1.2, high=1.6)), text="round 1: 2 plans left"))
    assert (
        it.live(99) == "race: round 1: 2 plans left  4 trials  peak 54 of 72 MiB  ----------  1.32x so far, 2:00 left"
    )
    other = BEST.replace(micro_batch_size=16)
    gain, ahead = (Ratio(value=value, low=value - 0.1, high=value + 0.1, pairs=4) for value in (1.2, 1.3))
    told(it, raced((other, ahead), (BEST, gain)))
    assert it.live(120) == (
        "race: round 4: 2 plans left  4 trials  peak 54 of 72 MiB  ----------  1.20x (1.10 to 1.30) so far, 2:00 left"
    )
    assert it.live(59) == "race  4 trials  peak 54 of 72 MiB  1.20x so far, 2:00 left"
    assert it.live(39) == "race  4  54/72 MiB  1.20x, 2:00 left"


@pytest.mark.parametrize("limit_s", [120.0, None])
@pytest.mark.parametrize("phase", ["search", "race"])
@pytest.mark.parametrize("width", [39, 99])
def test_memory_against_the_budget_and_what_the_time_means_stay_on_a_narrow_terminal(
    width: int, phase: str, limit_s: float | None
) -> None:
    it, time = state(limit_s)
    told(it, *EVENTS)
    if phase == "race":
        told(it, raced((BEST, Ratio(value=1.2, low=1.1, high=1.3, pairs=14)), text="round 14: 2 plans left"))
    else:
        told(it, running(BASELINE.replace(micro_batch_size=16, accumulation_steps=2, precision="bf16"), 61))
    for elapsed_s in (18.0, 119.0):
        time.seconds = elapsed_s
        line = it.live(width)
        assert re.search(r"\d(/| of )72 MiB", line), line
        assert line.endswith("left" if limit_s else "elapsed"), line


def test_before_a_search_starts_only_the_phase_and_the_time_are_known() -> None:
    it = SearchState(Clock(Time()), 120.0)
    told(it, Event("stage", "looking at train.py:make_workload"), answered(BEST, None), running(BEST, 61))
    assert it.live(80) == "search  0 trials  ----------  2:00 left"


def test_a_guess_is_not_shown_and_a_measured_peak_goes_before_an_estimate() -> None:
    it, _ = state()
    other = BEST.replace(micro_batch_size=16)
    told(it, *EVENTS, running(other, 61, bounded=False))
    assert "now 16 x 4" in it.live(120)
    assert "61" not in it.live(120)
    told(it, running(BEST, 61, phase="proof"))
    assert "now 8 x 4, precision=bf16, checkpointed_blocks=2: 54 of 72 MiB" in it.live(120)


@pytest.mark.parametrize(
    ("limit_s", "elapsed_s", "said"),
    [
        (None, 5.0, "5 s elapsed"),
        (None, 3725.0, "1:02:05 elapsed"),
        (10.0, 12.0, "########## 0 s left"),
        (600.0, 1.0, "#--------- 9:59 left"),
    ],
)
def test_time_is_what_is_left_of_the_budget_or_what_went_by(limit_s: float | None, elapsed_s: float, said: str) -> None:
    it, time = state(limit_s)
    time.seconds = elapsed_s
    assert " ".join(it.live(80).split()) == f"survey {said}"


def test_without_the_baseline_the_answer_is_its_throughput() -> None:
    it, _ = state()
    told(it, ran(BEST, 52384.7, 54), answered(BEST, None))
    assert it.live(90) == "search  1 trial  peak 54 of 72 MiB  ----------  52,380 samples/s so far, 2:00 left"


def test_an_answer_that_is_known_from_an_earlier_run_is_shown_before_anything_ran() -> None:
    it, _ = state()
    told(it, answered(BEST, None))
    assert it.live(80).endswith("  a plan proven, 2:00 left")


@pytest.mark.parametrize(
    ("peak_mib", "limit_mib", "said"),
    [(1123, 1536, "1.1 of 1.5 GiB"), (53, 2048, "53 MiB of 2 GiB"), (1010, 1020, "1010 of 1020 MiB")],
)
def test_the_unit_is_written_once_and_figures_are_short(peak_mib: int, limit_mib: int, said: str) -> None:
    it, _ = state(limit_mib=limit_mib)
    told(it, ran(BASELINE, 100.0, peak_mib), answered(BASELINE, 1.0))
    assert f"1 trial  peak {said}  " in it.live(80)


def test_a_stage_is_wrapped_and_not_cut() -> None:
    ended = Event("stage", "search ended: the 1 min 29 s left of 3 min 0 s are kept for the race and the proof")
    assert told(state()[0], ended, width=59) == [
        "autofit: search ended: the 1 min 29 s left of 3 min 0 s are",
        "         kept for the race and the proof",
    ]


def test_a_proof_is_a_row_that_is_not_compared() -> None:
    it, _ = state()
    proving = Event("stage", f"proving {BEST}", phase="proof")
    (_, row) = told(
        it,
        ran(BASELINE),
        proving,
        ran(BEST, 500.0, kind="proof"),
        width=140,
    )
    assert row.startswith(
        "proof          micro batch 8 x 4 accumulation steps = 32, precision=bf16, checkpointed_blocks"
    )


def test_a_long_silence_is_reported_above_the_line() -> None:
    assert told(state()[0], Event("waiting", "no sign of life for 30 s: 'step' goes on")) == [
        "autofit: no sign of life for 30 s: 'step' goes on"
    ]


def test_the_bar_has_blocks_where_the_terminal_can_show_them() -> None:
    time = Time()
    it = SearchState(Clock(time), 120.0)
    time.seconds = 60.0
    assert "#####-----" in it.live(80)
    it.blocks = True
    assert re.search("█{5}░{5}", it.live(80))


@pytest.mark.parametrize("width", [39, 59, 79])
def test_trials_of_different_plans_differ_at_any_width(width: int) -> None:
    """They differ in the last knob only, which a cut would hide."""
    plans = [BEST.replace(optimizer_implementation=value, checkpointed_blocks=2) for value in ("fused", "foreach")]
    for status in (Status.MEASURED, Status.OUT_OF_MEMORY):
        first, second = (told(state()[0], ran(plan, status=status), width=width) for plan in plans)
        assert first != second
        assert all(cells(line) <= width for line in (*first, *second))


def test_colour_is_added_after_the_line_is_cut() -> None:
    it, _ = state()
    it.colour = True
    told(it, ran(BASELINE))
    assert told(it, ran(BEST, 132.0, 54, 2), width=39)[0].startswith("    2  \x1b[32m 1.32x\x1b[0m  ")
    failed = told(it, ran(BASELINE, status=Status.OUT_OF_MEMORY, done=3), width=39)
    assert failed[0].startswith("    3  \x1b[31mfailed\x1b[0m  ")
    assert all(cells(re.sub(r"\x1b\[\d+m", "", line)) <= 39 for line in failed)


def test_a_plan_is_its_batch_and_what_it_changes() -> None:
    assert short_plan(BASELINE, BASELINE) == "baseline"
    assert short_plan(BEST, BASELINE) == "8 x 4, precision=bf16, checkpointed_blocks=2"


def test_figures_are_short() -> None:
    assert [short_time(each) for each in (-5.0, 59.9, 61.0, 3725.0)] == ["0 s", "59 s", "1:01", "1:02:05"]
    assert of_budget(3 * 2**20, 2**30) == "3 MiB of 1 GiB"
    assert of_budget(53 * 2**20, 72 * 2**20, short=True) == "53/72 MiB"
    assert of_budget(53 * 2**20, 2**31, short=True) == "53M/2G"
