"""What is said where a search ends without a measured plan."""

import pytest

from autofit.core.budget import Budget
from autofit.core.errors import (
    BudgetSpent,
    NonFiniteLoss,
    NothingFits,
    UserCodeError,
    WorkloadError,
)
from autofit.core.estimate import Estimate
from autofit.core.outcome import CONTRACT, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal, SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.probing.ranks.outcomes import LEFT_OUT
from autofit.search.no_answer import nothing_measured
from autofit.search.search import run
from tests.fakes import (
    MIB,
    Fixed,
    always,
    during,
    tuning_of,
)
from tests.search.listed import at, calm, only


def test_time_over_before_any_plan_was_measured() -> None:
    bench = calm(prepare_s=100.0)
    for size in (4, 8):
        bench.faults[at(bench, size).key] = always(Status.OUT_OF_MEMORY, "tried to allocate 3 GiB")
    with pytest.raises(BudgetSpent, match="3 GiB"):
        run(tuning_of(bench, budget=Budget(memory_bytes=bench.budget_bytes, time_s=60.0)))


def test_the_baselines_own_measurement_is_in_the_message_when_the_budget_is_spent() -> None:
    bench = calm(prepare_s=100.0, budget_bytes=600 * MIB)
    with pytest.raises(BudgetSpent, match="samples/s, peak 680 MiB"):
        run(only(bench, bench.space.baseline, budget=Budget(memory_bytes=bench.budget_bytes, time_s=60.0)))


@pytest.mark.fault("F35")
def test_nothing_fits_says_what_was_tried_and_the_smallest_peak() -> None:
    bench = calm(budget_bytes=300 * MIB)
    with pytest.raises(NothingFits) as caught:
        run(tuning_of(bench))
    text = str(caught.value)
    assert "300 MiB" in text
    assert "400 MiB stay between steps" in text or "No step was completed" in text
    assert "micro batch 4" in text
    assert len(text) < 900


def test_nothing_fits_says_what_a_check_of_the_gradient_left_out() -> None:
    gate = Refusal(name="accumulation", reason="accumulation changes the gradient of this model. " * 9, origin="gate")
    other = Refusal(name="memory_format", reason="the model has no 2-d convolution")
    bench = calm(budget_bytes=300 * MIB)
    facts = bench.space.facts.model_copy(update={"refused": (gate, other)})
    bench.space = SearchSpace(facts)
    with pytest.raises(NothingFits) as caught:
        run(tuning_of(bench))
    text = str(caught.value)
    assert "A check of this model's gradient left out accumulation (accumulation changes the gradient" in text
    assert text.count("changes the gradient") < 6
    assert "memory_format" not in text


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
def test_the_users_code_that_fails_only_in_the_final_is_shown_as_theirs_and_the_baseline_kept(purpose: Purpose) -> None:
    bench = calm()
    for plan in (bench.space.baseline, at(bench, 32)):
        bench.faults[plan.key] = during(purpose, Status.USER_ERROR, "ValueError: expected nine columns")
    findings = run(only(bench, bench.space.baseline, at(bench, 32)))
    assert findings.plan == bench.space.baseline
    assert findings.stopped.startswith("UserCodeError: ")
    assert "expected nine columns" in findings.stopped


def test_the_users_code_failing_twice_ends_the_search_with_their_traceback() -> None:
    bench = calm()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        bench.evaluate(plan, purpose)
        return Outcome(
            status=Status.USER_ERROR, reason="KeyError: 'labels'", traceback_text="File train.py", phase="forward"
        )

    with pytest.raises(UserCodeError, match="KeyError: 'labels'") as caught:
        run(tuning_of(bench, evaluate=evaluate))
    assert caught.value.traceback_text == "File train.py"
    assert "first with micro batch 8: KeyError" in str(caught.value)
    assert len(bench.probes()) == 2


def test_a_result_that_is_no_loss_ends_the_search_at_once() -> None:
    bench = calm()
    reason = "step_fn returned a dict; expected a scalar tensor with a gradient; return the loss tensor alone"

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        bench.evaluate(plan, purpose)
        return Outcome(status=Status.USER_ERROR, reason=reason, phase=CONTRACT)

    with pytest.raises(UserCodeError, match="your code does not give a loss to train on: step_fn returned a dict"):
        run(tuning_of(bench, evaluate=evaluate))
    assert len(bench.probes()) == 1


def test_the_users_code_is_named_also_where_the_time_was_spent_after_it_failed() -> None:
    """Whatever ran next, more time would not help."""
    bench = calm()
    baseline = bench.space.baseline
    trials = [
        Trial(number=0, plan=baseline, outcome=Outcome(status=Status.USER_ERROR, reason="KeyError: 'y'")),
        Trial(number=1, plan=at(bench, 16), outcome=Outcome(status=Status.TIMED_OUT, reason="not compiled in time")),
    ]
    found = nothing_measured(trials, baseline, Budget(memory_bytes=1), "the time is spent", early=True)
    assert isinstance(found, UserCodeError)
    assert "KeyError: 'y'" in str(found)


def test_a_reason_that_says_what_to_pin_is_not_called_a_fault_of_the_users_code() -> None:
    bench = calm()
    outcome = Outcome(status=Status.USER_ERROR, reason=f"rank 0: {LEFT_OUT}")
    trials = [Trial(number=0, plan=bench.space.baseline, outcome=outcome)]
    found = nothing_measured(trials, bench.space.baseline, Budget(memory_bytes=1), "the time is spent", early=True)
    assert "your code" not in str(found)
    assert str(found).endswith("pin find_unused_parameters=True, so that ranks look for them.")


@pytest.mark.parametrize(("runs", "kind"), [(1, BudgetSpent), (2, UserCodeError)])
def test_a_process_that_was_lost_once_before_the_time_was_over_is_not_the_users_fault(
    runs: int, kind: type[Exception]
) -> None:
    baseline = calm().space.baseline
    lost = Outcome(status=Status.CRASHED, reason="killed by signal SIGKILL")
    trials = [Trial(number=number, plan=baseline, outcome=lost) for number in range(runs)]
    found = nothing_measured(trials, baseline, Budget(memory_bytes=1), "the time is spent", early=True)
    assert type(found) is kind
    assert "killed by signal SIGKILL" in str(found)


def test_an_optimizer_that_asks_for_a_closure_when_it_steps_is_passed_with_update_fn() -> None:
    """As SAM's: its signature has a default, and it asserts that one is given."""
    bench = calm()

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        bench.evaluate(plan, purpose)
        return Outcome(status=Status.USER_ERROR, reason="AssertionError: SAM requires closure", phase="optimizer")

    with pytest.raises(UserCodeError, match="Pass update_fn, which does the whole step") as caught:
        run(tuning_of(bench, evaluate=evaluate))
    assert "reproduce" not in str(caught.value)


@pytest.mark.fault("F44")
def test_a_loss_that_is_not_finite_under_the_users_own_setting() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(Status.NUMERIC, "loss is nan")
    with pytest.raises(NonFiniteLoss, match="loss is nan"):
        run(tuning_of(bench))


@pytest.mark.fault("F31")
def test_nothing_measured_for_other_reasons_than_memory() -> None:
    bench = calm()
    with pytest.raises(WorkloadError, match="no optimizer step"):
        run(tuning_of(bench, evaluate=lambda *_: Outcome(status=Status.NO_STEP, reason="no optimizer step")))


def test_nothing_fits_says_the_smallest_peak_estimated_and_by_how_much_it_is_too_large() -> None:
    bench = calm()
    limit = bench.budget_bytes
    never = Estimate(value_bytes=limit + 64 * MIB, lower_bytes=limit + 1, static_bytes=400 * MIB)
    with pytest.raises(NothingFits) as raised:
        run(tuning_of(bench, estimators=[Fixed(never, lambda plan: True)]))
    assert bench.runs == []
    assert "of which 400 MiB stay between steps, 64 MiB above the budget" in str(raised.value)


def test_what_ran_is_named_before_what_did_not_and_by_its_changes() -> None:
    bench = calm(budget_bytes=600 * MIB)
    below = Estimate(value_bytes=601 * MIB, lower_bytes=601 * MIB)
    with pytest.raises(NothingFits) as raised:
        run(tuning_of(bench, estimators=[Fixed(below, lambda plan: plan.micro_batch_size < 8)]))
    text = str(raised.value)
    assert "Tried: micro batch 8: over budget" in text
    assert text.index("Tried: ") < text.index("Not run: micro batch ")
    assert "micro_batch_size=" not in text  # plans are named by what they change, as trials are
