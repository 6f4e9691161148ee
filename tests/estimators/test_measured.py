"""The memory curve from sizes that ran."""

import random

import pytest

from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators.measured import READING_RATIO, Measured


def plan(size: int, steps: int = 1, **values: str) -> Plan:
    combination = {"precision": "float32", "checkpoint": "none"} | values
    return Plan(values={"micro_batch_size": size, "accumulation_steps": steps, **combination})


def trial(
    given: Plan,
    peak: int,
    static: int | None = 100,
    status: Status = Status.MEASURED,
    purpose: Purpose = Purpose.PROBE,
) -> Trial:
    memory = Memory(allocated_bytes=peak, judged_bytes=peak, judged_by="test", static_bytes=static)
    measurement = Measurement(step_times_s=(1.0,), samples_per_step=given.global_batch_size, memory=memory)
    outcome = Outcome(status=status, reason="" if status is Status.MEASURED else "why", measurement=measurement)
    return Trial(number=0, plan=given, outcome=outcome, purpose=purpose)


def told(*trials: Trial) -> Measured:
    estimator = Measured()
    for one in trials:
        estimator.tell(one)
    return estimator


def known(estimator: Measured, given: Plan) -> Estimate:
    estimate = estimator.estimate(given)
    assert estimate is not None
    return estimate


def test_nothing_told_means_no_opinion() -> None:
    assert Measured().estimate(plan(8)) is None


def test_a_measured_size_is_known_exactly() -> None:
    estimate = known(told(trial(plan(8), 900)), plan(8))
    assert (estimate.lower_bytes, estimate.value_bytes, estimate.upper_bytes) == (900, 900, 900)


def test_one_size_is_taken_from_the_static_memory_up() -> None:
    estimate = known(told(trial(plan(8), 900, static=100)), plan(16))
    assert estimate.value_bytes == 100 + 800 * 2
    assert estimate.lower_bytes == pytest.approx(900, rel=2 * READING_RATIO)
    assert estimate.upper_bytes is None


def test_without_static_memory_one_size_is_scaled_whole() -> None:
    assert known(told(trial(plan(8), 900, static=None)), plan(16)).value_bytes == 1800


def test_a_smaller_size_needs_no_more_than_a_larger_one() -> None:
    estimate = known(told(trial(plan(8), 900)), plan(4))
    assert estimate.upper_bytes == 900
    assert estimate.lower_bytes == 100
    assert estimate.value_bytes == 500


def test_two_sizes_bound_from_below_outside_and_from_above_between() -> None:
    estimator = told(trial(plan(4), 500), trial(plan(8), 900))
    beyond, between = known(estimator, plan(16)), known(estimator, plan(6))
    assert beyond.value_bytes == 1700
    assert beyond.lower_bytes == pytest.approx(1700, rel=5 * READING_RATIO)
    assert beyond.upper_bytes is None
    assert (between.value_bytes, between.upper_bytes) == (700, 700)


@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_for_every_maximum_of_lines(seed: int) -> None:
    draw = random.Random(seed)
    static = draw.randint(0, 2000)
    phases = [(static + draw.randint(0, 3000), draw.randint(0, 200)) for _ in range(draw.randint(1, 4))]

    def peak(size: int) -> int:
        return max(fixed + slope * size for fixed, slope in phases)

    sizes = draw.sample(range(1, 129), draw.randint(1, 5))
    estimator = told(*(trial(plan(size), peak(size), static) for size in sizes))
    for size in range(1, 257):
        estimate = known(estimator, plan(size))
        assert estimate.lower_bytes is not None
        assert estimate.lower_bytes <= peak(size) + 1
        assert estimate.lower_bytes <= estimate.value_bytes
        if estimate.upper_bytes is not None:
            assert peak(size) - 1 <= estimate.upper_bytes
            assert estimate.value_bytes <= estimate.upper_bytes
        if len(sizes) == 1 and size > sizes[0]:
            assert estimate.value_bytes >= peak(size) - 1, "from one size the guess is rather too high"


def test_what_ran_over_the_budget_counts() -> None:
    estimator = told(trial(plan(4), 500), trial(plan(16), 1700, status=Status.OVER_BUDGET))
    assert known(estimator, plan(8)).value_bytes == 900


@pytest.mark.parametrize("status", [Status.NUMERIC, Status.CRASHED, Status.REJECTED])
def test_what_did_not_run_to_its_end_does_not_count(status: Status) -> None:
    assert told(trial(plan(4), 500, status=status)).estimate(plan(8)) is None


def test_a_block_of_a_race_does_not_count() -> None:
    estimator = told(trial(plan(8), 900), trial(plan(8), 300, purpose=Purpose.BLOCK))
    assert known(estimator, plan(8)).value_bytes == 900


def test_of_two_readings_the_higher_counts() -> None:
    estimator = told(trial(plan(8), 900), trial(plan(8), 950, purpose=Purpose.PROOF), trial(plan(8), 910))
    assert known(estimator, plan(8)).value_bytes == 950


def test_another_combination_is_a_guess_without_bounds() -> None:
    estimate = known(told(trial(plan(4), 500), trial(plan(8), 900)), plan(8, precision="bf16"))
    assert estimate.value_bytes == 900
    assert estimate.lower_bytes is None
    assert estimate.upper_bytes is None
    assert estimate.basis == "from the measured peak of the same plan with precision=float32"


@pytest.mark.parametrize(("steps", "ran"), [(2, "accumulation"), (1, "no accumulation")])
def test_a_guess_across_accumulation_names_what_ran(steps: int, ran: str) -> None:
    estimate = known(told(trial(plan(8, steps=steps), 900)), plan(16, steps=3 - steps))
    assert estimate.basis == f"from a line through measured peaks of the same plan with {ran}"


def test_of_equally_near_combinations_the_lowest_guess_counts() -> None:
    """One of them may lack the change that saves memory."""
    fused = plan(8, precision="float32", checkpoint="none")
    estimator = told(trial(fused, 900), trial(plan(8, precision="bf16", checkpoint="all"), 300))
    estimate = known(estimator, plan(8, precision="float32", checkpoint="all"))
    assert (estimate.value_bytes, estimate.is_bounded) == (300, False)
    assert estimate.basis == "from the measured peak of the same plan with precision=bf16"


def test_the_nearest_combination_is_borrowed() -> None:
    estimator = told(trial(plan(8), 900), trial(plan(8, checkpoint="all"), 300))
    assert known(estimator, plan(8, checkpoint="all", precision="bf16")).value_bytes == 300


def test_sizes_with_and_without_accumulation_do_not_bound_each_other() -> None:
    # Without accumulation no gradients are alive in the forward pass: the peak at 16 may be below that at 8.
    estimate = known(told(trial(plan(8, steps=2), 900)), plan(16, steps=1))
    assert estimate.lower_bytes is None
    assert estimate.value_bytes > 900


def test_a_neighbours_growth_is_borrowed_where_one_size_alone_says_too_much() -> None:
    flat = told(trial(plan(4), 900), trial(plan(8), 910), trial(plan(4, precision="bf16"), 880))
    alone = told(trial(plan(4, precision="bf16"), 880))
    assert known(flat, plan(8, precision="bf16")).value_bytes == 890
    assert known(alone, plan(8, precision="bf16")).value_bytes == 100 + 780 * 2


def test_the_basis_shows_the_numbers() -> None:
    assert "900 B at micro batch 8" in known(told(trial(plan(8), 900)), plan(16)).basis


def test_each_peak_changes_what_is_said_of_its_own_combination_and_of_those_that_borrow() -> None:
    trials = [
        trial(plan(8), 900),
        trial(plan(8, checkpoint="all"), 400),
        trial(plan(16), 950),
        trial(plan(32, checkpoint="all"), 700),
        trial(plan(16), 990),
    ]
    asked = [plan(32), plan(32, checkpoint="all"), plan(32, precision="bf16"), plan(8)]
    asked_often = Measured()
    for count, one in enumerate(trials, 1):
        asked_often.tell(one)
        fresh = told(*trials[:count])
        assert [asked_often.estimate(each) for each in asked] == [fresh.estimate(each) for each in asked]
