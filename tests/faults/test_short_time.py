"""D6: with little time something is tried, and nothing is kept for a race that cannot be."""

import math
import re
from typing import Any

import pytest

from autofit.core.answer import Candidate
from autofit.core.budget import Budget, Clock
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal, SearchSpace
from autofit.core.trial import Purpose, RunTerms
from autofit.core.units import parse_duration
from autofit.reports.summary import summarize
from autofit.search.request import Findings
from autofit.search.search import TRACING_S, run, tracing_s
from tests.fakes import OPTIMIZER, PRECISION, FakeBench, small_bench, space_of, tuning_of
from tests.reports.test_summary import OWN, measured, record


def hurried(probes: float, before: float = 0.0) -> tuple[FakeBench, Findings]:
    """A search with time for so many probes of the user's own setting, after what took as long as others `before`."""

    def bench() -> FakeBench:
        return small_bench(space=space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32), 8), prepare_s=5.0)

    probe_s = bench().evaluate(bench().space.baseline, Purpose.PROBE).duration_s
    found = bench()
    budget = Budget(memory_bytes=found.budget_bytes, time_s=(before + probes) * probe_s)
    tuning = tuning_of(found, budget=budget)
    found.time.advance(before * probe_s)
    return found, run(tuning)


@pytest.mark.parametrize("before", [0.0, 4.0, 12.0])
def test_d6_no_time_is_kept_for_a_race_without_a_second_runner(before: float) -> None:
    bench, findings = hurried(3.8, before)
    assert len(bench.probes()) >= 2
    assert findings.untried == ""


def test_d6_the_first_probe_after_the_users_own_promises_most() -> None:
    bench, _ = hurried(3.8)
    own, first = bench.probes()[:2]
    assert own == bench.space.baseline
    assert bench.samples_per_s(first) > 1.3 * bench.samples_per_s(own)


def test_d6_what_was_not_tried_is_named_with_the_time_it_would_need() -> None:
    bench, findings = hurried(1.5)
    assert [plan for plan, purpose in bench.runs if purpose is Purpose.PROBE] == [bench.space.baseline]
    assert findings.plan == bench.space.baseline
    assert findings.untried.startswith("No other plan was tried: ")
    assert " was next. A probe takes " in findings.untried
    assert "give at least " in findings.untried


@pytest.mark.parametrize("probes", [1.05, 1.5, 1.9])
def test_d6_the_reason_is_the_time_where_it_was_too_short_and_more_of_it_suffices(probes: float) -> None:
    _, findings = hurried(probes)
    assert findings.stopped.startswith("the time ended before another plan could run, with ")
    found = re.search(r"give at least ([\d.]+ s)$", findings.untried)
    assert found is not None
    bench = hurried(1.0)[0]
    probe_s = bench.evaluate(bench.space.baseline, Purpose.PROBE).duration_s
    longer, findings = hurried(parse_duration(found[1]) / probe_s)
    assert len(longer.probes()) > 1
    assert findings.untried == ""


def test_d6_with_time_for_everything_the_reason_is_not_the_time() -> None:
    _, findings = hurried(1000.0)
    assert findings.stopped == "nothing left that was worth a probe"


def test_d6_nothing_is_faster_is_only_said_of_what_was_tried() -> None:
    kept = record(plan=OWN, gain=None)
    tried = kept.model_copy(update={"alternatives": (Candidate(plan=OWN.replace(fuse=True), outcome=measured()),)})
    assert "Nothing that was tried is faster." in " ".join(summarize(tried).split())
    untried = kept.model_copy(update={"untried": "Nothing else was tried: give at least 2 min"})
    text = " ".join(summarize(untried).split())
    assert "Nothing else was tried: give at least 2 min." in text
    assert "Nothing that was tried is faster" not in text


def test_d6_a_space_of_one_plan_says_that_there_is_nothing_else() -> None:
    bench = small_bench(space=space_of((), (8,), 8, global_batch_size=8))
    findings = run(tuning_of(bench))
    assert findings.plan == Plan(values={"micro_batch_size": 8, "accumulation_steps": 1})
    assert findings.untried == "There is no other plan"


def test_d6_a_space_that_gates_left_with_one_plan_names_what_they_refused() -> None:
    space = space_of((), (8,), 8, global_batch_size=8)
    refused = Refusal(name="precision=bf16", reason="no", origin="gate"), Refusal(name="attention", reason="no")
    bench = small_bench(space=SearchSpace(space.facts.model_copy(update={"refused": refused})))
    assert run(tuning_of(bench)).untried == "There is no other plan: checks of the gradient refused precision=bf16"


@pytest.mark.usefixtures("whole_search")
@pytest.mark.parametrize(
    ("time_s", "spent_s", "left_s"),
    [(60.0, 0.0, 12.0), (60.0, 10.0, 10.0), (60.0, 70.0, 0.0), (6000.0, 10.0, TRACING_S), (None, 500.0, TRACING_S)],
)
def test_d6_estimating_memory_takes_a_fifth_of_the_time_left_at_most(
    time_s: float | None, spent_s: float, left_s: float
) -> None:
    assert tracing_s(time_s, spent_s) == pytest.approx(left_s)


class Cut:
    """A bench whose probes are ended when the time is over, as real ones are."""

    def __init__(self, bench: FakeBench, time_s: float) -> None:
        self.bench, self.time_s = bench, time_s
        self.cut: list[Plan] = []

    def __call__(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        began = self.bench.time.seconds
        most_s = min(self.time_s - began, terms.limit_s or math.inf)
        outcome = self.bench.evaluate(plan, purpose, terms)
        found = outcome.measurement
        proof_s = 3 * found.step_time_s if found is not None and found.proven else 0.0  # may be cut off
        if purpose is not Purpose.PROBE or self.bench.time.seconds - began - proof_s <= most_s:
            return outcome
        self.bench.time.seconds = began + most_s
        self.cut.append(plan)
        return Outcome(status=Status.TIMED_OUT, reason=f"not done in {most_s:.0f} s")


def ever_larger(**changes: Any) -> FakeBench:
    """A bench on which each doubling of the batch promises some per cent, up to steps that take 20 s."""
    sizes = tuple(2**power for power in range(3, 14))
    return small_bench(
        space=space_of((PRECISION,), sizes, 8), budget_bytes=2**60, prepare_s=0.1, decline=-0.04, knee=8, **changes
    )


def limited(bench: FakeBench, time_s: float) -> dict[str, Any]:
    return {
        "budget": Budget(memory_bytes=bench.budget_bytes, time_s=time_s),
        "clock": Clock(bench.time, limit_s=time_s),
    }


def test_d6_no_probe_is_begun_that_the_time_left_is_too_short_for() -> None:
    bench, time_s = ever_larger(), 60.0
    cut = Cut(bench, time_s)
    findings = run(tuning_of(bench, evaluate=cut, **limited(bench, time_s)))
    assert not cut.cut
    assert findings.plan.micro_batch_size >= 512


def test_d6_a_plan_that_the_time_was_too_short_for_is_not_tried_again_with_less() -> None:
    bench, time_s = ever_larger(slower=lambda plan: 40.0 if plan.micro_batch_size > 64 else 1.0), 60.0
    cut = Cut(bench, time_s)
    run(tuning_of(bench, evaluate=cut, **limited(bench, time_s)))
    assert cut.cut  # nothing told that they would be so slow
    assert len(cut.cut) == len({plan.key for plan in cut.cut})
