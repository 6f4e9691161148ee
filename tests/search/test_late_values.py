"""Late values: tried on the proven plan in fresh processes, taken only if surely faster, on the scale of the race."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
from autofit.core.gate_verdict import Checked, GateVerdict
from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Recommendation
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.memory.trace import Trace
from autofit.reports.sources import of_study
from autofit.search.bench import RestartableBench
from autofit.search.event import Event
from autofit.search.phases import run
from autofit.search.request import Request
from autofit.search.search import search
from autofit.search.tuning import Findings, Tuning
from tests.fakes import OPTIMIZER, PRECISION, FakeBench, MemoryLog, briefing_of, small_bench, space_of
from tests.search.listed import at, only

LATE = Knob(name="kept", values=(False, True), default=False)
NAME = "kept=True"


@dataclass
class Fresh:
    """Proves plans of a simulated device in processes that it pretends to start.

    Attributes:
        bench: the device.
        ratio: throughput with the late value over that without it; or that of each pair of proofs.
        failing: outcome of a proof in a fresh process in place of a run, by its number from 0.
        asked: the plans that were proven.
    """

    bench: FakeBench
    ratio: float | tuple[float, ...] = 1.0
    fresh_proof_s: float = 20.0
    failing: Mapping[int, Outcome | None] = field(default_factory=dict)
    asked: list[Plan] = field(default_factory=list)
    proof_start_s: float = 0.0

    @property
    def briefing(self) -> Briefing:
        return briefing_of(self.bench)

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        return self.bench.evaluate(plan, purpose)

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        return Checked()

    def prove_under(self, plan: Plan, variables: Mapping[str, str], left_s: float) -> tuple[Briefing, Outcome] | None:
        assert not variables
        self.asked.append(plan)
        number = len(self.asked) - 1
        if number in self.failing:
            outcome = self.failing[number]
            return None if outcome is None else (self.briefing, outcome)
        outcome = self.bench.evaluate(plan, Purpose.PROOF)
        assert outcome.measurement is not None
        ratio = self.ratio[number // 2] if isinstance(self.ratio, tuple) else self.ratio
        faster = ratio if plan.values.get("kept") else 1.0
        times = tuple(each / faster for each in outcome.measurement.step_times_s)
        measurement = outcome.measurement.model_copy(update={"step_times_s": times})
        return self.briefing, outcome.model_copy(update={"measurement": measurement})

    def trace(self, plan: Plan) -> Trace:
        raise AssertionError("a bench without an account was asked for a trace")

    record = trace


def device(**changes: Any) -> FakeBench:
    """A calm device whose space has a late knob."""
    space = space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8)
    with_late = SearchSpace(space.facts.model_copy(update={"late": (LATE,)}))
    return small_bench(**({"space": with_late, "noise": 0.004, "drift": 0.004} | changes))


def tuning(fresh: Fresh, log: MemoryLog | None = None, **changes: Any) -> Tuning:
    bench = fresh.bench
    plans = [bench.space.baseline, at(bench, 32, precision="bf16"), at(bench, 16), at(bench, 8, precision="tf32")]
    fields: dict[str, Any] = {"fresh": fresh, "log": log or MemoryLog()}
    return only(bench, *plans, **(fields | changes))


def plain_search() -> Findings:
    """Returns what the search finds on a bench that cannot start processes."""
    return run(replace(tuning(Fresh(device())), fresh=None))


def said(findings: Findings) -> str:
    (text,) = (text for text in findings.caveats if text.startswith(NAME))
    return text


def test_a_value_that_is_faster_is_taken_and_all_figures_move_by_its_ratio() -> None:
    plain = plain_search()
    fresh, log = Fresh(device(), ratio=1.25), MemoryLog()
    assert isinstance(fresh, RestartableBench)
    found = run(tuning(fresh, log))
    first, second = plain.plan, plain.plan.replace(kept=True)
    assert found.plan == second
    assert fresh.asked == [first, second, second, first, first, second, second, first]
    assert found.proof == next(t for t in reversed(log.finished) if t.plan == second).outcome.measurement
    assert "was tried on the plan after the race: 1.2" in said(found)
    assert "4 pairs of proofs in fresh processes" in said(found)
    assert found.gain is not None and plain.gain is not None  # noqa: PT018  # for the type checker
    ratio = found.gain.value / plain.gain.value
    assert ratio == pytest.approx(1.25, rel=0.02)
    assert found.gain.low < found.gain.value < found.gain.high
    assert found.gain.high / found.gain.low > plain.gain.high / plain.gain.low
    assert found.gain.pairs == 4
    assert found.rate_per_s == pytest.approx(ratio * (plain.rate_per_s or 0))
    best, *others = found.alternatives
    assert (best.plan, best.rate_per_s, best.gain) == (first, plain.rate_per_s, plain.gain)
    assert best.over_recommended is not None
    assert best.over_recommended.value == pytest.approx(1 / ratio)
    assert str(best.over_recommended) in best.note
    for now, then in zip(others, plain.alternatives, strict=True):
        assert (now.plan, now.rate_per_s, now.gain) == (then.plan, then.rate_per_s, then.gain)
        assert now.over_recommended is not None and then.over_recommended is not None  # noqa: PT018  # as above
        assert now.over_recommended.value == pytest.approx(then.over_recommended.value / ratio)
        assert then.note.replace("throughput", f"throughput without {NAME}") == now.note
    rates = [found.rate_per_s, *(each.rate_per_s for each in found.alternatives)]
    assert rates == sorted(rates, key=lambda rate: -(rate or 0))


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.01])
def test_a_value_that_is_not_ahead_is_given_up_after_two_pairs(ratio: float) -> None:
    plain, fresh = plain_search(), Fresh(device(), ratio)
    found = run(tuning(fresh))
    assert (found.plan, found.proof, found.gain, found.rate_per_s) == (
        plain.plan, plain.proof, plain.gain, plain.rate_per_s,
    )  # fmt: skip
    assert fresh.asked == [plain.plan, *[plain.plan.replace(kept=True)] * 2, plain.plan]
    assert "was tried on the plan and left out" in said(found)
    assert "2 pairs of proofs" in said(found)
    (tried,) = (each for each in found.alternatives if each.plan.values.get("kept"))
    assert tried.over_recommended is not None
    assert tried.over_recommended.value == pytest.approx(ratio, rel=0.02)
    assert tried.rate_per_s == pytest.approx(tried.over_recommended.value * (plain.rate_per_s or 0))
    assert str(tried.over_recommended) in said(found)


@pytest.mark.parametrize(
    ("ratios", "taken"),
    [
        ((1.05, 1.06, 1.05, 1.06), True),
        ((1.10, 1.30, 1.05, 1.20), False),  # noise: the interval reaches below 1
        ((1.05, 1.04, 1.02, 1.03), False),  # faster, but the interval reaches into the tie margin
    ],
    ids=str,
)
def test_a_value_must_surely_be_ahead_by_more_than_the_tie_margin(ratios: tuple[float, ...], taken: bool) -> None:
    fresh = Fresh(device(noise=0.0, drift=0.0), ratios)
    found = run(tuning(fresh))
    assert len(fresh.asked) == 8
    assert (LATE.name in found.plan.values) is taken
    assert ("left out" in said(found)) is not taken
    assert "4 pairs" in said(found)


def test_a_wrong_value_is_rarely_taken_from_noise() -> None:
    taken = [run(tuning(Fresh(device(drift=0.03, seed=seed)))).plan.values.get("kept") for seed in range(60)]
    assert taken.count(True) <= 2


@pytest.mark.parametrize(("number", "which"), [(0, "without"), (1, "with"), (2, "with"), (5, "with")], ids=str)
def test_a_proof_that_fails_in_a_fresh_process_leaves_the_answer(number: int, which: str) -> None:
    failed = Outcome(status=Status.OUT_OF_MEMORY, reason="tried to allocate 2 GiB")
    plain, log = plain_search(), MemoryLog()
    fresh = Fresh(device(), 1.25, failing={number: failed})
    found = run(tuning(fresh, log))
    assert (found.plan, found.proof) == (plain.plan, plain.proof)
    assert len(fresh.asked) == number + 1
    assert said(found).endswith(
        f"left out: a proof {which} it failed in a fresh process: out of memory, tried to allocate 2 GiB"
    )
    assert log.finished[-1].outcome == failed
    assert found.counts["out of memory"] == 1


def test_a_process_that_cannot_be_opened_is_a_skipped_trial() -> None:
    fresh, log = Fresh(device(), 1.25, failing={3: None}), MemoryLog()
    found = run(tuning(fresh, log))
    assert LATE.name not in found.plan.values
    assert "no time left, or no process could be opened" in said(found)
    assert log.finished[-1].outcome.status is Status.SKIPPED


@pytest.mark.parametrize(("more_s", "tried"), [(-1.0, False), (1.0, True)])
def test_it_is_tried_only_if_there_is_time_for_all_proofs(more_s: float, tried: bool) -> None:
    spent = Fresh(device())
    clock = Clock(spent.bench.time)
    run(replace(tuning(spent, clock=clock), fresh=None))
    fresh, needed_s = Fresh(device(), 1.25, fresh_proof_s=1000.0), 8000.0
    budget = Budget(memory_bytes=fresh.bench.budget_bytes, time_s=clock.elapsed_s + needed_s + more_s)
    found = run(tuning(fresh, budget=budget, clock=Clock(fresh.bench.time)))
    assert bool(fresh.asked) is tried
    assert (found.plan.values.get("kept") is True) is tried
    if not tried:
        assert "it needs 8 proofs in fresh processes, about" in said(found)
        assert not found.complete


def test_a_bench_without_fresh_processes_says_nothing() -> None:
    found = plain_search()
    assert not [text for text in found.caveats if NAME in text]


def test_a_baseline_that_wins_gains_what_the_value_gives() -> None:
    bench = device()
    fresh = Fresh(bench, 1.25)
    found = run(only(bench, bench.space.baseline, fresh=fresh))
    assert found.plan == bench.space.baseline.replace(kept=True)
    assert found.gain is not None
    assert found.gain.value == pytest.approx(1.25, rel=0.02)
    assert found.gain.pairs == 4
    assert found.alternatives == ()
    assert (found.baseline.plan, found.untried) == (bench.space.baseline, "")


def test_each_proof_is_a_trial_that_is_told_with_the_time_that_is_left() -> None:
    fresh, log, events = Fresh(device(), 1.25), MemoryLog(), list[Event]()
    found = run(tuning(fresh, log, listen=events.append))
    proofs = [trial for trial in log.finished if trial.purpose is Purpose.PROOF]
    assert [trial.plan for trial in proofs[1:]] == fresh.asked
    assert [trial.number for trial in found.trials] == [trial.number for trial in log.finished]
    assert sum(found.counts.values()) == len(log.finished)
    told = [event for event in events if event.kind == "proof"]
    assert [event.trial for event in told] == proofs
    assert [event.left_s for event in told[1:]] == [20.0 * left for left in range(7, -1, -1)]
    assert {event.done for event in told} == {told[0].done}


def asked(fresh: Fresh, study: Path, **options: Any) -> Recommendation:
    return search(fresh, Request(study=study, **options), (), Clock(fresh.bench.time))


def test_a_later_search_proves_the_answer_again_with_its_value(tmp_path: Path) -> None:
    fresh, study = Fresh(device(), 1.25), tmp_path / "study.db"
    first = asked(fresh, study)
    assert first.plan.values["kept"] is True
    assert first.estimate is None  # that of the plan without the value
    tried, ran = len(fresh.asked), len(fresh.bench.runs)
    again = asked(fresh, study)
    assert again.plan == first.plan
    assert fresh.bench.runs[ran:] == [(first.plan, Purpose.PROOF)]
    assert len(fresh.asked) == tried
    assert [each.plan for each in again.alternatives] == [each.plan for each in first.alternatives]
    assert not [text for text in again.caveats if "not used" in text]
    report = of_study(study)
    assert report.recommendation == again


def test_a_value_that_was_left_out_keeps_its_reason_in_the_study(tmp_path: Path) -> None:
    fresh, study = Fresh(device(), 0.9), tmp_path / "study.db"
    first = asked(fresh, study)
    (tried,) = (each for each in first.alternatives if each.plan.values.get("kept"))
    report = of_study(study)
    assert report.recommendation is not None
    assert tried in report.recommendation.alternatives


def test_a_search_without_time_for_it_is_not_the_answer_of_one_that_has_time(tmp_path: Path) -> None:
    fresh, study = Fresh(device(), 1.25, fresh_proof_s=1e6), tmp_path / "study.db"
    assert LATE.name not in asked(fresh, study, time_s=10_000.0).plan.values
    fresh.fresh_proof_s = 20.0
    assert asked(fresh, study, time_s=10_000.0).plan.values["kept"] is True
