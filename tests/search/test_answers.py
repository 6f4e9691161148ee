"""The best plan so far: there is one once the baseline has run, whatever ends the search, and it passes its check."""

from collections.abc import Mapping

import pytest

from autofit.core.budget import Budget
from autofit.core.errors import DevicePoisoned, UserCodeError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.trial import OPEN, Purpose, RunTerms, Trial
from autofit.gates.verdict import Checked, GateVerdict
from autofit.search.answers import is_proven
from autofit.search.loop import Loop
from autofit.search.request import Check, Event, Findings
from autofit.search.search import run
from tests.fakes import FakeBench, MemoryLog, always, during, small_bench, tuning_of
from tests.search.listed import at, calm, only


def ended_at(number: int, error: BaseException) -> tuple[FakeBench, Findings]:
    """Runs a search whose run of this number, counted from 0, raises an error."""
    bench = calm()

    def evaluate(plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        if len(bench.runs) == number:
            raise error
        return bench.evaluate(plan, purpose, terms)

    return bench, run(tuning_of(bench, evaluate=evaluate, isolated=True))


def refusing(name: str, asked: list[Plan]) -> Check:
    """Returns a check that refuses plans with the value `name`, as "precision=bf16"."""
    knob, value = name.split("=")

    def check(plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        asked.append(plan)
        if plan.values[knob] != value:
            return Checked()
        verdict, refusal = GateVerdict(passed=False, reason="far"), Refusal(name=name, reason="far", origin="gate")
        return Checked(passed=False, reason=f"{name}: far", verdicts={name: verdict}, refused=(refusal,))

    return check


@pytest.mark.parametrize("number", [1, 2, 3, 5, 9, 14, 20])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), DevicePoisoned("gone"), UserCodeError("no")])
def test_the_best_so_far_is_returned_at_whatever_run_the_search_ends(number: int, error: BaseException) -> None:
    bench, findings = ended_at(number, error)
    assert len(bench.runs) == number, "nothing runs after the end"
    assert findings.interrupted is isinstance(error, KeyboardInterrupt)
    assert findings.answers[-1].plan == findings.plan
    assert bench.samples_per_s(findings.plan) >= 0.99 * bench.samples_per_s(bench.space.baseline)
    assert bench.fits(findings.plan)


def test_an_interrupt_before_the_baseline_has_run_has_no_answer() -> None:
    with pytest.raises(KeyboardInterrupt):
        ended_at(0, KeyboardInterrupt())


@pytest.mark.parametrize("time_s", [0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0])
def test_any_time_budget_ends_with_an_answer_that_is_proven(time_s: float) -> None:
    bench = small_bench()
    findings = run(tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, time_s=time_s)))
    assert findings.proof.proven or (findings.plan, Purpose.PROOF) in bench.runs
    assert bench.fits(findings.plan)


@pytest.mark.parametrize("status", [Status.USER_ERROR, Status.CRASHED, Status.OUT_OF_MEMORY, Status.TIMED_OUT])
def test_faults_of_all_other_plans_leave_the_baseline(status: Status) -> None:
    bench = calm()
    for combination in bench.space.combinations():
        for size in bench.space.sizes:
            if (plan := bench.space.at(combination, size)) != bench.space.baseline:
                bench.faults[plan.key] = always(status)
    findings = run(tuning_of(bench))
    assert findings.plan == bench.space.baseline
    assert findings.proof.proven or (findings.plan, Purpose.PROOF) in bench.runs


def test_a_plan_whose_check_fails_is_no_answer_and_its_value_is_not_probed_again() -> None:
    bench, asked, at_run = calm(), list[Plan](), list[int]()
    refuse = refusing("precision=bf16", asked)

    def check(plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        if plan.values["precision"] == "bf16":
            at_run.append(len(bench.runs))
        return refuse(plan, known)

    findings = run(tuning_of(bench, check=check))
    assert findings.plan.values["precision"] != "bf16"
    assert "bf16" not in {answer.plan.values["precision"] for answer in findings.answers}
    assert len(at_run) == 1
    assert "bf16" not in {plan.values["precision"] for plan, _ in bench.runs[at_run[0] :]}


def test_plans_that_could_not_be_checked_share_one_caveat_with_the_reason() -> None:
    unchecked = Checked(passed=False, checked=False, reason="could not be checked: the gradient is zero on this batch")
    findings = run(tuning_of(calm(), check=lambda plan, known: unchecked))
    assert findings.plan == calm().space.baseline
    found = [caveat for caveat in findings.caveats if "was the choice" in caveat]
    assert len(found) == 1
    assert f"was the choice, but {unchecked.reason} (the same for " in found[0]


def test_what_a_probe_must_beat_rises_with_the_answer() -> None:
    bench = calm()
    loop = Loop(only(bench, bench.space.baseline))
    plan = at(bench, 32, precision="bf16")
    assert loop.answers.terms(bench.space.baseline, None).above == 0.0
    first = loop.consider(bench.space.baseline)
    above = loop.answers.terms(plan, None).above
    assert is_proven(first)
    assert above is not None
    assert above > 0
    second = loop.consider(plan)
    assert loop.answers.best == second
    assert (loop.answers.terms(plan, None).above or 0) > above


def test_the_answer_falls_back_on_the_one_before() -> None:
    bench = calm()
    loop = Loop(only(bench, bench.space.baseline))
    first, second = (loop.consider(plan) for plan in (bench.space.baseline, at(bench, 32, precision="bf16")))
    assert loop.answers.ratio is not None
    assert loop.answers.ratio > 1
    loop.answers.drop(second.plan)
    assert loop.answers.best == first
    assert loop.answers.ratio == 1
    assert loop.answers.of(second.plan) is None


def test_each_answer_is_an_event_with_its_plan_also_the_one_that_is_fallen_back_on() -> None:
    bench, events = calm(), list[Event]()
    loop = Loop(only(bench, bench.space.baseline, listen=events.append))
    best = at(bench, 32, precision="bf16")
    trials = [loop.consider(plan) for plan in (bench.space.baseline, best)]
    ratio = loop.answers.ratio
    loop.answers.make(trials[1])  # the same plan, proven once more
    loop.answers.drop(best)
    found = [(event.plan, event.so_far) for event in events if event.kind == "answer"]
    assert found == [(bench.space.baseline, 1), (best, ratio), (bench.space.baseline, 1)]
    assert [(each.plan, each.ratio) for each in loop.answers.log] == found
    assert [event.so_far for event in events if event.kind == "running"] == [None, 1]


def test_an_answer_of_an_earlier_run_is_compared_once_the_baseline_has_run_again() -> None:
    bench, events = calm(), list[Event]()
    best, log = at(bench, 32, precision="bf16"), MemoryLog()
    run(only(bench, bench.space.baseline, best, log=log))
    past = tuple(trial.model_copy(update={"earlier": True}) for trial in log.finished)
    run(only(bench, log=MemoryLog(past), listen=events.append))
    assert [event.plan for event in events if event.kind == "answer"] == [best]
    shown = [event.so_far for event in events if event.kind in ("answer", "running")]
    assert shown[:2] == [None, None]
    assert shown[2] is not None


def test_an_answer_that_fails_in_the_race_is_dropped() -> None:
    bench, best = calm(), at(calm(), 32, precision="bf16")
    bench.faults[best.key] = during(Purpose.BLOCK, Status.USER_ERROR, "why")
    findings = run(only(bench, bench.space.baseline, best))
    assert [answer.plan for answer in findings.answers][:2] == [bench.space.baseline, best]
    assert findings.plan == bench.space.baseline


def test_a_poisoned_device_of_this_process_ends_the_search_without_an_answer() -> None:
    bench = calm()

    def evaluate(plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        if len(bench.runs) == 3:
            raise DevicePoisoned("gone")
        return bench.evaluate(plan, purpose, terms)

    with pytest.raises(DevicePoisoned, match="gone"):
        run(tuning_of(bench, evaluate=evaluate))


@pytest.mark.parametrize("status", [Status.POISONED, Status.OUT_OF_MEMORY, Status.CRASHED])
def test_a_search_goes_on_after_earlier_trials_that_failed(status: Status) -> None:
    bench = calm()
    failed = Trial(number=0, plan=at(bench, 16), outcome=Outcome(status=status, reason="why"), earlier=True)
    findings = run(tuning_of(bench, MemoryLog((failed,))))
    assert bench.fits(findings.plan)
