"""How likely a plan is to fit: by bounds, by others' peaks, by what did not fit."""

import pytest

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from scripts.bench.search.simulated import Effect, space_of
from tests.fakes import MIB, FakeBench
from tests.feasibility.judge import Judge, at, linear


def test_bounds_decide_where_they_are_narrow() -> None:
    bench = linear()
    limit = bench.budget_bytes

    def estimate(plan: Plan) -> Estimate:
        value = limit * plan.micro_batch_size // 32
        return Estimate(value_bytes=value, lower_bytes=round(0.99 * value), upper_bytes=round(1.01 * value))

    judge = Judge(bench, estimate)
    assert judge.likely(at(bench, 16)) == 1.0
    assert judge.likely(at(bench, 64)) == 0.0
    assert 0.2 < judge.likely(at(bench, 32)) < 0.8


def test_wide_bounds_are_corrected_by_what_ran() -> None:
    bench = linear(budget_bytes=1500 * MIB)

    def estimate(plan: Plan) -> Estimate:
        value = 1.15 * bench.peak_bytes(plan)
        return Estimate(value_bytes=round(value), lower_bytes=round(0.85 * value), upper_bytes=round(1.15 * value))

    judge = Judge(bench, estimate)
    fits = max((s for s in bench.space.sizes if bench.fits(at(bench, s))), default=0)
    before = judge.likely(at(bench, fits))
    judge.run(bench.space.baseline)
    assert judge.likely(at(bench, fits)) > max(before, 0.9)


def test_a_value_that_frees_static_memory_makes_a_plan_likelier_to_fit_and_says_nothing_of_others() -> None:
    def likely(freed_mib: int) -> tuple[float, float]:
        bench = linear(static_mib=1000)
        saving = Knob(name="states", values=("float32", "low"), default="float32", frees_bytes=(0, freed_mib * MIB))
        bench.space = space_of([saving], (4, 8, 16), 4)
        bench.effects = {("states", "low"): Effect(fixed_mib=-freed_mib)}
        bench.budget_bytes = bench.peak_bytes(at(bench, 8)) - 100 * MIB
        judge = Judge(bench)
        judge.run(at(bench, 4))
        return judge.likely(at(bench, 8, states="low")), judge.likely(at(bench, 8))

    (without, plain), (saved, same) = likely(0), likely(400)
    assert saved > 0.8 > without
    assert plain == pytest.approx(same, abs=0.01)


def with_room(room: float) -> tuple[FakeBench, Plan]:
    """Returns a device whose budget is `room` times the peak of a plan, and that plan."""
    bench = linear(budget_bytes=1500 * MIB)
    largest = at(bench, max(size for size in bench.space.sizes if bench.fits(at(bench, size))))
    bench.budget_bytes = round(room * bench.peak_bytes(largest))
    return bench, largest


def small(bench: FakeBench) -> list[Plan]:
    """Returns plans that surely fit."""
    return [at(bench, 4, precision=precision) for precision in ("float32", "tf32", "bf16")]


def estimated(bench: FakeBench, plan: Plan, **changes: int) -> Estimate:
    """Returns a guess that is a tenth too low, with bounds that are wider than that."""
    said = round(0.9 * bench.peak_bytes(plan))
    wide = Estimate(value_bytes=said, lower_bytes=round(0.88 * said), upper_bytes=round(1.12 * said))
    return wide.model_copy(update=changes | ({"said_bytes": said} if changes else {}))


def judge_of_the_largest(room: float, **changes: float) -> float:
    """Returns how likely the largest plan is to fit after smaller ones ran; `changes` are shares of its peak."""
    bench, largest = with_room(room)
    moved = {name: round(share * bench.peak_bytes(largest)) for name, share in changes.items()}
    judge = Judge(bench, lambda plan: estimated(bench, plan, **(moved if plan == largest else {})))
    for plan in small(bench):
        judge.run(plan)
    return judge.likely(largest)


def test_a_guess_that_what_ran_raised_is_corrected_as_it_was_said() -> None:
    assert judge_of_the_largest(1.01, value_bytes=0.96, lower_bytes=0.96) > 0.9


def test_a_corrected_guess_is_not_below_what_a_plan_needs_at_least() -> None:
    alone = judge_of_the_largest(1.02)
    assert judge_of_the_largest(1.02, value_bytes=1.019, lower_bytes=1.019, upper_bytes=1.2) < 0.7 < alone


def test_a_guess_that_what_ran_lowered_stays_lowered() -> None:
    assert judge_of_the_largest(0.95) < 0.1
    assert judge_of_the_largest(0.95, value_bytes=0.8, upper_bytes=0.8, lower_bytes=0.7) > 0.9


@pytest.mark.parametrize(("room", "fits"), [(1.02, True), (0.98, False)])
def test_what_was_said_counts_for_how_far_guesses_are_off(room: float, fits: bool) -> None:
    bench, largest = with_room(room)

    def estimate(plan: Plan) -> Estimate:
        if plan == largest:
            return estimated(bench, plan)
        peak = bench.peak_bytes(plan)
        return estimated(bench, plan, value_bytes=peak, lower_bytes=peak, upper_bytes=round(1.2 * peak))

    judge = Judge(bench, estimate)
    for plan in small(bench):
        judge.run(plan)
    assert judge.likely(largest) == pytest.approx(float(fits), abs=0.1)


def test_guesses_that_were_all_off_alike_are_trusted_the_more_of_them_ran() -> None:
    bench, tight = with_room(1.01)
    judge, chances = Judge(bench, lambda plan: estimated(bench, plan)), []
    for plan in small(bench):
        judge.run(plan)
        chances.append(judge.likely(tight))
    assert chances == sorted(chances)
    assert chances[-1] > chances[0] + 0.05


def test_that_one_value_needs_room_says_little_of_another() -> None:
    bench = linear(budget_bytes=1200 * MIB)
    judge = Judge(bench)
    judge.run(bench.space.baseline)
    other = at(bench, 16, optimizer="fused")
    before = judge.likely(other)
    judge.tell(at(bench, 16, optimizer="foreach"))
    assert 0.9 < judge.likely(other) < before, "a relation of 0.5, as for speed, would make it 0.86"


def test_a_refusal_that_contradicts_what_ran_says_little_of_other_plans() -> None:
    """A library that takes room at one size only must not make all that shares a value with that plan look large."""
    bench = linear(budget_bytes=4000 * MIB)
    large = at(bench, 64, precision="bf16", optimizer="fused")
    calm, told = Judge(bench), Judge(bench)
    for judge in (calm, told):
        for size, changes in ((8, {}), (32, {"precision": "bf16"}), (8, {"optimizer": "fused"})):
            judge.run(at(bench, size, **changes))
    assert calm.likely(large) > 0.9
    told.tell(at(bench, 16, precision="tf32", optimizer="fused"))
    assert told.likely(large) > 0.5


def test_a_size_surely_fits_where_even_the_steepest_line_from_what_stays_does() -> None:
    bench = linear()
    measurement = bench.evaluate(at(bench, 8), Purpose.PROBE).measurement
    assert measurement is not None
    stays, peak = measurement.memory.static_bytes or 0, measurement.memory.judged_bytes
    assert stays > 0
    for size in (16, 32):
        most = stays + (peak - stays) * size // 8
        for room, sure in ((1, True), (-1, False)):
            judge = Judge(linear(budget_bytes=most + room))
            judge.run(at(bench, 8))
            assert (judge.likely(at(bench, size)) == 1.0) is sure
            assert judge.likely(at(bench, size, precision="bf16")) < 1.0  # of another combination nothing is sure


def test_a_change_that_saves_is_taken_to_another_size() -> None:
    bench = linear(budget_bytes=1200 * MIB)
    judge = Judge(bench)
    for plan in (at(bench, 4), bench.space.baseline, at(bench, 8, precision="bf16", checkpoint="all")):
        judge.run(plan)
    large = next(s for s in bench.space.sizes if not bench.fits(at(bench, s)))
    assert judge.likely(at(bench, large, precision="bf16", checkpoint="all")) > judge.likely(at(bench, large)) + 0.3


@pytest.mark.parametrize("worst_case", [False, True])
def test_a_worst_case_refuses_nothing(worst_case: bool) -> None:
    bench = linear()

    def estimate(plan: Plan) -> Estimate:
        much = 2 * bench.budget_bytes
        return Estimate(value_bytes=much, lower_bytes=much, upper_bytes=much, worst_case=worst_case)

    judge = Judge(bench, estimate)
    judge.run(bench.space.baseline)
    assert (judge.likely(at(bench, 4)) > 0) is worst_case
