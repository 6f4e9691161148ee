"""Trials of earlier runs are told first, and what they show is not run again."""

from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose, Trial
from autofit.search.search import run
from tests.fakes import (
    MemoryLog,
    tuning_of,
)
from tests.search.listed import at, calm, listed


def test_a_repeated_plan_is_answered_from_the_record() -> None:
    bench = calm()
    plan = at(bench, 16)
    make, made = listed(plan, plan, plan)
    run(tuning_of(bench, searcher=make))
    assert bench.probes().count(plan) == 1
    assert [t.plan for t in made[0].told[:3]] == [plan] * 3


def test_earlier_trials_are_told_first_and_not_run_again() -> None:
    first, log = calm(), MemoryLog()
    run(tuning_of(first, log))
    past = tuple(t.model_copy(update={"earlier": True}) for t in log.finished)
    bench = calm()
    findings = run(tuning_of(bench, MemoryLog(past)))
    assert bench.probes() == [findings.plan, bench.space.baseline]
    assert bench.probes(Purpose.PROOF) == [findings.plan]
    assert bench.regret(findings.plan) < 0.05
    assert findings.trials[: len(past)] == past


def test_a_loss_that_was_not_finite_in_an_earlier_run_is_tried_again() -> None:
    bench = calm()
    outcome = Outcome(status=Status.NUMERIC, reason="loss is nan")
    past = (Trial(number=0, plan=bench.space.baseline, outcome=outcome, earlier=True),)
    findings = run(tuning_of(bench, MemoryLog(past)))
    assert bench.space.baseline in bench.probes()
    assert findings.gain is not None
