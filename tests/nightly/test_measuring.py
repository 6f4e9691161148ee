"""Measuring a plan: repeated runs, interleaved blocks, and a re-check of at most 8 runs."""

import math

import pytest

from autofit.core.errors import BudgetSpent, DevicePoisoned, NonFiniteLoss, UserCodeError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly.measuring import confirm, far_slower, recheck
from autofit.nightly.records import VerdictKind
from tests.fakes import CHECKPOINT, FORMAT, OPTIMIZER, PRECISION, always, briefing_of, during, space_of
from tests.nightly.benches import calm, faster, runner_of


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        (Status.CRASHED, 2),
        (Status.TIMED_OUT, 2),
        (Status.AMBIGUOUS, 2),
        (Status.OUT_OF_MEMORY, 1),
        (Status.USER_ERROR, 1),
        (Status.NUMERIC, 1),
    ],
)
def test_an_inconclusive_run_is_repeated_once_and_no_other(status: Status, runs: int) -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(status)
    runner = runner_of(bench)
    assert runner.run(bench.space.baseline, Purpose.PROOF).status is status
    assert len(bench.runs) == runner.runs == runs


def test_a_run_that_crashes_once_counts_as_it_ends() -> None:
    bench, outcomes = calm(), [Outcome(status=Status.CRASHED, reason="killed")]
    bench.faults[bench.space.baseline.key] = lambda purpose: outcomes.pop() if outcomes else None
    assert runner_of(bench).run(bench.space.baseline, Purpose.PROOF).measured


def test_a_run_that_was_refused_memory_far_below_the_budget_is_repeated_once() -> None:
    bench = calm()
    plan = bench.space.baseline
    ran = bench.evaluate(plan, Purpose.PROOF).measurement
    assert ran is not None
    memory = ran.memory.model_copy(update={"judged_bytes": 1, "allocator_retries": 1})
    refused = Outcome(
        status=Status.OVER_BUDGET, reason="retries", measurement=ran.model_copy(update={"memory": memory})
    )
    outcomes = [refused, refused, refused]
    bench.faults[plan.key] = lambda purpose: outcomes.pop() if outcomes else None
    runner = runner_of(bench)
    assert runner.run(plan, Purpose.PROOF).status is Status.OVER_BUDGET
    assert runner.run(plan, Purpose.PROOF).measured


def test_a_device_that_stays_poisoned_is_an_error() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(Status.POISONED)
    with pytest.raises(DevicePoisoned):
        runner_of(bench).run(bench.space.baseline, Purpose.PROOF)


def test_an_interrupted_run_interrupts() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(Status.INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        runner_of(bench).run(bench.space.baseline, Purpose.PROOF)


def test_a_run_that_the_time_budget_cut_off_says_nothing_about_the_plan() -> None:
    bench = calm()
    runner = runner_of(bench, limit_s=10.0)

    def slow(purpose: Purpose) -> Outcome:
        bench.time.advance(20.0)
        return Outcome(status=Status.TIMED_OUT, reason="not finished in 12 s, the limit that the time budget sets")

    bench.faults[bench.space.baseline.key] = slow
    with pytest.raises(BudgetSpent, match="the time budget of 10 s ended before a proof of"):
        runner.run(bench.space.baseline, Purpose.PROOF)


def test_a_run_that_did_not_begin_says_nothing_about_the_plan() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(Status.SKIPPED, "the time budget ran out before it began")
    with pytest.raises(BudgetSpent):
        runner_of(bench).run(bench.space.baseline, Purpose.PROOF)


def test_blocks_interleave_forward_and_backward_also_over_several_calls() -> None:
    bench = calm()
    first, second = bench.space.baseline, faster(bench)
    runner = runner_of(bench)
    runner.rounds([first, second], 3)
    runner.rounds([first, second], 1)
    assert [plan for plan, _ in bench.runs] == [first, second, second, first, first, second, second, first]


def test_the_ratio_of_rounds_is_that_of_the_simulation() -> None:
    bench = calm()
    first, second = bench.space.baseline, faster(bench)
    pairing = runner_of(bench).rounds([second, first], 6).pairing(second, first)
    assert pairing is not None
    true = bench.samples_per_s(second) / bench.samples_per_s(first)
    assert math.exp(pairing.log_ratio) == pytest.approx(true, rel=0.01)


def test_a_plan_whose_block_fails_leaves_and_the_other_goes_on() -> None:
    bench = calm()
    first, second = bench.space.baseline, faster(bench)
    bench.faults[second.key] = during(Purpose.BLOCK, Status.OUT_OF_MEMORY)
    rounds = runner_of(bench).rounds([first, second], 3)
    assert (len(rounds.of(first)), rounds.of(second)) == (3, ())
    assert rounds.failed[second.key].status is Status.OUT_OF_MEMORY
    assert rounds.pairing(first, second) is None
    assert bench.probes(Purpose.BLOCK).count(second) == 1


def test_rounds_before_the_end_of_the_time_count() -> None:
    bench = calm()
    first, second, runs = bench.space.baseline, faster(bench), list[Plan]()

    def until_the_fourth(plan: Plan, purpose: Purpose) -> Outcome:
        runs.append(plan)
        return bench.evaluate(plan, purpose) if len(runs) < 4 else Outcome(status=Status.SKIPPED, reason="time over")

    rounds = runner_of(bench, evaluate=until_the_fourth).rounds([first, second], 3)
    assert rounds.early
    assert [len(rounds.of(plan)) for plan in (first, second)] == [1, 1]
    assert rounds.pairing(first, second) is None
    with pytest.raises(BudgetSpent):  # not even one round
        runner_of(bench, evaluate=until_the_fourth).rounds([first, second], 3)


def test_enough_ends_the_rounds() -> None:
    bench = calm()
    rounds = runner_of(bench).rounds(
        [bench.space.baseline], 9, lambda so_far: len(so_far.of(bench.space.baseline)) == 2
    )
    assert len(rounds.of(bench.space.baseline)) == 2


def test_an_unchanged_job_takes_eight_runs_and_gives_the_gain_with_its_interval() -> None:
    bench = calm()
    plan, baseline = faster(bench), bench.space.baseline
    runner = runner_of(bench)
    found = recheck(runner, plan)
    assert runner.runs == 8
    assert bench.runs[:2] == [(plan, Purpose.PROOF), (baseline, Purpose.PROBE)]
    assert found.failure is None
    assert found.accepted is not None
    assert found.baseline is not None
    assert found.accepted.plan == plan
    assert found.accepted.rate_per_s == pytest.approx(bench.samples_per_s(plan), rel=0.02)
    assert found.accepted.peak_bytes == bench.peak_bytes(plan)
    assert (found.accepted.judged_by, found.unit) == ("simulated", "samples")
    assert found.gain is not None
    assert found.gain.pairs == 3
    true = bench.samples_per_s(plan) / bench.samples_per_s(baseline)
    assert found.gain.low < true < found.gain.high
    assert found.notes == ()


def test_a_baseline_that_was_accepted_is_measured_alone() -> None:
    bench = calm()
    runner = runner_of(bench)
    found = recheck(runner, bench.space.baseline)
    assert runner.runs == 4
    assert (found.baseline, found.gain) == (None, None)
    assert found.accepted is not None
    assert len(found.accepted.rates_per_s) == 3


def test_a_baseline_that_does_not_fit_is_a_note() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = always(Status.OUT_OF_MEMORY, "tried to allocate 2 GiB")
    found = recheck(runner_of(bench), faster(bench))
    assert (found.baseline, found.gain) == (None, None)
    assert found.accepted is not None
    assert found.notes == ("the baseline does not run: out of memory, tried to allocate 2 GiB",)


@pytest.mark.parametrize("purpose", [Purpose.PROOF, Purpose.BLOCK])
def test_a_plan_that_does_not_fit_any_more_says_why(purpose: Purpose) -> None:
    bench = calm()
    bench.faults[faster(bench).key] = during(purpose, Status.OVER_BUDGET, "peak 3 above the budget 2")
    found = recheck(runner_of(bench), faster(bench))
    assert found.accepted is None
    assert found.failure is not None
    assert (found.failure.status, found.failure.reason) == (Status.OVER_BUDGET, "peak 3 above the budget 2")


def test_a_block_of_the_baseline_that_fails_leaves_the_accepted_plan_measured() -> None:
    bench = calm()
    bench.faults[bench.space.baseline.key] = during(Purpose.BLOCK, Status.OUT_OF_MEMORY, "no room")
    found = recheck(runner_of(bench), faster(bench))
    assert found.accepted is not None
    assert (found.baseline, found.gain) == (None, None)
    assert found.notes == ("a block of the baseline failed: out of memory, no room",)


@pytest.mark.parametrize(("status", "error"), [(Status.USER_ERROR, UserCodeError), (Status.NUMERIC, NonFiniteLoss)])
def test_a_workload_that_fails_with_every_plan_is_the_workloads_fault(
    status: Status, error: type[UserCodeError]
) -> None:
    bench = calm()
    bench.faults |= {plan.key: always(status, "boom") for plan in (faster(bench), bench.space.baseline)}
    with pytest.raises(error, match=r"fails with the accepted plan .*boom.* and with the baseline"):
        recheck(runner_of(bench), faster(bench))


def test_a_plan_that_the_job_does_not_admit_is_not_run() -> None:
    bench = calm()
    other = space_of((PRECISION, CHECKPOINT, OPTIMIZER, FORMAT), (4, 8, 16), 8, 16)
    briefing = briefing_of(bench, space=other.facts)
    found = recheck(runner_of(bench, space=briefing.space), faster(bench))
    assert found.failure is not None
    assert found.failure.status is Status.REJECTED
    assert (
        "does not admit the plan: it has 8 x 1 samples per optimizer step, and this search runs 8 x 2"
        in found.failure.reason
    )
    assert [plan for plan, _ in bench.runs] == [other.baseline]


def test_a_plan_of_an_earlier_version_is_run_as_it_is_although_it_lacks_a_knob() -> None:
    bench = calm()
    plan = Plan(values={k: v for k, v in faster(bench).values.items() if k != "memory_format"})
    found = recheck(runner_of(bench), plan)
    assert found.accepted is not None
    assert found.accepted.plan == plan


def test_time_that_ends_early_is_a_note_and_before_the_first_round_an_error() -> None:
    bench, left = calm(), [5]

    def until(plan: Plan, purpose: Purpose) -> Outcome:
        left[0] -= 1
        return bench.evaluate(plan, purpose) if left[0] >= 0 else Outcome(status=Status.SKIPPED, reason="over")

    found = recheck(runner_of(bench, evaluate=until), faster(bench))
    assert found.accepted is not None
    assert found.notes == ("the time budget ended the measurement after 1 of 3 rounds",)
    assert found.gain is None
    left[0] = 3
    with pytest.raises(BudgetSpent):
        recheck(runner_of(bench, evaluate=until), faster(bench))


def test_a_confirmation_measures_speed_and_memory_again() -> None:
    bench = calm()
    runner = runner_of(bench)
    again = confirm(runner, faster(bench))
    assert again is not None
    assert runner.runs == 7
    assert again.peak_bytes == bench.peak_bytes(faster(bench))
    assert len(again.rates_per_s) == 3


def test_a_confirmation_that_fails_or_has_no_time_is_none() -> None:
    bench = calm()
    bench.faults[faster(bench).key] = always(Status.OUT_OF_MEMORY)
    assert confirm(runner_of(bench), faster(bench)) is None
    bench.faults[faster(bench).key] = during(Purpose.BLOCK, Status.SKIPPED)
    assert confirm(runner_of(bench), faster(bench)) is None


@pytest.mark.parametrize("purpose", [Purpose.PROOF, Purpose.BLOCK])
def test_a_plan_that_is_so_slow_that_a_run_does_not_end_is_slower_than_before(purpose: Purpose) -> None:
    bench = calm()
    plan = faster(bench)
    step_s = bench.step_time_s(plan)

    def evaluate(asked: Plan, why: Purpose) -> Outcome:
        if (asked, why) != (plan, purpose):
            return bench.evaluate(asked, why)
        bench.time.advance(runner.clock.left_s)
        return Outcome(status=Status.TIMED_OUT, reason="not finished")

    runner = runner_of(bench, 60.0, evaluate)
    with pytest.raises(BudgetSpent):
        recheck(runner, plan)
    verdict = far_slower(runner, plan, plan.global_batch_size / step_s, step_s)
    assert verdict is not None
    assert (verdict.kind, verdict.moved) == (VerdictKind.REGRESSION, ("slower",))
    assert f"a {purpose.value} of" in verdict.reason
    assert "did not end in" in verdict.reason
    assert far_slower(runner, bench.space.baseline, 1.0, 1.0) is None, "another plan was cut off"
    assert far_slower(runner, plan, None, step_s) is None


def test_a_run_that_the_time_was_too_short_for_says_nothing() -> None:
    bench = calm()
    plan = faster(bench)

    def evaluate(asked: Plan, why: Purpose) -> Outcome:
        bench.time.advance(10.0)
        return Outcome(status=Status.TIMED_OUT, reason="not finished")

    runner = runner_of(bench, 10.0, evaluate)
    with pytest.raises(BudgetSpent):
        recheck(runner, plan)
    assert far_slower(runner, plan, 100.0, bench.step_time_s(plan)) is None
