"""Runs of a night: inconclusive ones are repeated once, spent time is no verdict on a plan, blocks interleave."""

import math

import pytest

from autofit.core.errors import BudgetSpent, DevicePoisoned
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from tests.fakes import always, during
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
    assert len(bench.runs) == runner.bench.runs == runs


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
