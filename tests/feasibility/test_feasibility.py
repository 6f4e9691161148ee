"""One answer to whether a plan fits: what is looked at, how likely it is, and when it is refused."""

from collections.abc import Callable, Sequence

import pytest

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.estimators import Measured
from autofit.estimators.base import Estimator
from autofit.feasibility import Feasibility
from autofit.feasibility.feasibility import CAREFUL, LIKELY, UNKNOWN
from scripts.bench.search.simulated import space_of
from tests.fakes import MIB, Estimates, FakeBench, Fixed
from tests.feasibility.judge import FULL, at, linear


class Looked(Estimator):
    """Notes what it is asked to refine; estimates the true peak of these plans from then on."""

    def __init__(self, bench: FakeBench, poisoned: bool = False) -> None:
        self.looked: list[tuple[Plan, int]] = []
        self.surveyed: list[list[Plan]] = []
        self._bench, self._poisoned = bench, poisoned

    def tell(self, trial: Trial) -> None:
        pass

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        self.looked += [(plan, len(along))]
        if self._poisoned:
            raise DevicePoisoned("the device is poisoned")

    def refine_all(self, plans: Sequence[Plan]) -> None:
        self.surveyed.append(list(plans))

    def estimate(self, plan: Plan) -> Estimate | None:
        looked = {(each.combination if along else each).key for each, along in self.looked}
        if plan.key not in looked and plan.combination.key not in looked:
            return None
        return exact(self._bench)(plan)


def exact(bench: FakeBench, factor: float = 1.0) -> Callable[[Plan], Estimate]:
    """Returns estimates of the true peak times a factor, with bounds that are 5 % apart."""

    def estimate(plan: Plan) -> Estimate:
        peak = factor * bench.peak_bytes(plan)
        return Estimate(value_bytes=round(peak), lower_bytes=round(0.975 * peak), upper_bytes=round(1.025 * peak))

    return estimate


def feasibility(bench: FakeBench, *estimators: Estimator, cautious: bool = False) -> Feasibility:
    return Feasibility(bench.space, bench.budget_bytes, estimators, cautious)


def trial(plan: Plan, outcome: Outcome = FULL, purpose: Purpose = Purpose.PROBE) -> Trial:
    return Trial(number=0, plan=plan, outcome=outcome, purpose=purpose)


def ran(of: Feasibility, bench: FakeBench, plan: Plan) -> None:
    of.look(plan)
    of.tell(trial(plan, bench.evaluate(plan, Purpose.PROBE)))


# Looks


def test_the_baseline_is_looked_at_with_all_sizes_first_and_informative_plans_before_any_other_look() -> None:
    bench = linear()
    eye = Looked(bench)
    ours, plan = feasibility(bench, eye), at(bench, 16, precision="bf16")
    ours.begin()
    assert eye.looked == [(bench.space.baseline, len(bench.space.sizes))]
    assert eye.surveyed == []
    assert ours.baseline_is_estimated
    ours.look(plan)
    ours.look(at(bench, 32, precision="bf16"))
    assert len(eye.surveyed) == 1
    assert bench.space.at(bench.space.baseline.combination, 32) in eye.surveyed[0]


def test_a_look_at_one_plan_alone_leaves_the_informative_plans_for_later() -> None:
    bench = linear()
    eye = Looked(bench)
    ours = feasibility(bench, eye)
    ours.look(bench.space.baseline, alone=True)
    ours.begin()
    ours.look(at(bench, 16), alone=True)
    assert eye.surveyed == []
    ours.look(at(bench, 16, precision="bf16"))
    assert len(eye.surveyed) == 1


def test_a_plan_is_looked_at_again_only_once_something_was_learned() -> None:
    bench = linear()
    eye = Looked(bench)
    wide = Estimate(value_bytes=bench.budget_bytes, lower_bytes=1, upper_bytes=10 * bench.budget_bytes)
    ours, plan = feasibility(bench, eye, Fixed(wide)), at(bench, 64)
    eye.estimate = lambda plan: None  # type: ignore[method-assign]
    for _ in range(2):
        ours.look(plan)
    assert eye.looked == [(plan, 0)]
    ours.tell(trial(bench.space.baseline))
    ours.look(plan)
    assert eye.looked == [(plan, 0)] * 2


@pytest.mark.parametrize(
    ("estimate", "looked"),
    [
        ({"value_bytes": 100 * MIB}, False),  # a guess, with room to spare
        ({"value_bytes": 900 * MIB}, True),  # a guess, without
        ({"value_bytes": 900 * MIB, "lower_bytes": 890 * MIB}, False),
        ({"value_bytes": 900 * MIB, "lower_bytes": 700 * MIB}, True),  # its bound is not close
        ({"value_bytes": 1400 * MIB, "lower_bytes": 1390 * MIB, "upper_bytes": 1600 * MIB}, True),  # on either side
    ],
)
def test_a_plan_whose_memory_is_known_well_enough_is_not_refined(estimate: dict[str, int], looked: bool) -> None:
    bench = linear(budget_bytes=1500 * MIB)
    eye = Looked(bench)
    ours = feasibility(bench, eye, Fixed(Estimate.model_validate(estimate)))
    ours.look(at(bench, 16))
    assert bool(eye.looked) is looked


def test_estimates_of_plans_that_were_looked_at_are_kept() -> None:
    bench = linear()
    ours, plan = feasibility(bench, Looked(bench)), at(bench, 16)
    ours.look(plan)
    found = ours.estimate(plan)
    assert found is not None
    assert ours.looked_at == {plan.key: found}


def test_a_look_that_poisons_the_device_says_so_and_what_was_learned_counts() -> None:
    bench = linear()
    ours, plan = feasibility(bench, Looked(bench, poisoned=True)), at(bench, 16)
    assert ours.estimate(plan) is None
    with pytest.raises(DevicePoisoned):
        ours.look(plan)
    assert ours.estimate(plan) == exact(bench)(plan)


@pytest.mark.parametrize(
    ("cautious", "budget", "looks"),
    [(False, 4.0, False), (False, 1.5, True), (True, 4.0, True), (True, 40.0, False)],
)
def test_a_new_combination_with_room_by_what_ran_is_not_looked_at_where_time_is_limited(
    cautious: bool, budget: float, looks: bool
) -> None:
    """Twice the micro batch: the peak grows to twice at most. `budget` is a multiple of the baseline's peak."""
    bench = linear()
    bench.budget_bytes = round(budget * bench.peak_bytes(bench.space.baseline))
    eye = Looked(bench)
    ours = Feasibility(bench.space, bench.budget_bytes, [eye], cautious, hurried=True, light=True)
    ran(ours, bench, bench.space.baseline)
    assert eye.looked == [], "the baseline runs first"
    plan = at(bench, 2 * bench.space.baseline.micro_batch_size, memory_format="channels_last")
    ours.look(plan)
    assert (plan in [looked for looked, _ in eye.looked]) is looks


# Probability


def test_a_probability_follows_what_is_learned() -> None:
    bench = linear(budget_bytes=1500 * MIB)
    ours, plan, other = feasibility(bench, Looked(bench)), at(bench, 64), at(bench, 64, precision="tf32")
    ran(ours, bench, bench.space.baseline)
    before = ours.probability(other)
    assert 0 < ours.probability(plan) < 1
    ours.look(plan)
    assert ours.probability(plan) == 0.0
    ours.tell(trial(plan))
    assert ours.probability(other) < before


def test_each_plan_that_did_not_fit_halves_the_accepted_risk() -> None:
    bench = linear()
    ours = feasibility(bench)
    assert ours.required_probability == pytest.approx(LIKELY)
    ours.tell(trial(at(bench, 64)))
    assert ours.required_probability == pytest.approx(1 - (1 - LIKELY) / 2)
    ours.tell(trial(at(bench, 64)))
    assert ours.required_probability == pytest.approx(1 - (1 - LIKELY) / 2), "it is the same plan"
    ours.tell(trial(at(bench, 32)))
    assert ours.required_probability == pytest.approx(1 - (1 - LIKELY) / 4)


def test_a_search_is_careful_where_the_machine_may_be_harmed_and_plans_cannot_be_estimated() -> None:
    bench = linear()
    known, unknown = Estimates(exact(bench)), Estimates(lambda plan: None)
    assert feasibility(bench, unknown, cautious=True).required_probability == pytest.approx(CAREFUL)
    assert feasibility(bench, unknown, cautious=True).is_careful
    assert not feasibility(bench, known, cautious=True).is_careful
    assert not feasibility(bench, unknown).is_careful


def test_a_plan_is_likely_from_the_required_probability_on() -> None:
    bench = linear(budget_bytes=1500 * MIB)
    ours = feasibility(bench, Estimates(exact(bench)))
    sizes = [size for size in bench.space.sizes if ours.is_likely(at(bench, size))]
    assert sizes == [size for size in bench.space.sizes if bench.fits(at(bench, size))]
    assert 0 < len(sizes) < len(bench.space.sizes)


def test_blocks_and_interrupted_trials_say_nothing() -> None:
    bench = linear()
    ours, plan = feasibility(bench), at(bench, 16)
    before = ours.probability(plan)
    ours.tell(trial(plan, purpose=Purpose.BLOCK))
    ours.tell(trial(plan, Outcome(status=Status.INTERRUPTED, reason="stopped")))
    assert ours.probability(plan) == before
    assert ours.refused_size(at(bench, 32)) is None
    ours.tell(trial(plan))
    assert ours.probability(plan) == 0.0


def test_plans_beyond_those_that_are_modelled_are_judged_by_their_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autofit.feasibility.plan_features.MAX_PLANS", 2)
    bench = linear(budget_bytes=1500 * MIB)
    small, large = at(bench, 8, optimizer="fused"), at(bench, 64, optimizer="fused")
    assert feasibility(bench).probability(small) == UNKNOWN
    ours = feasibility(bench, Estimates(exact(bench)))
    assert (ours.probability(small), ours.probability(large)) == (1.0, 0.0)
    ours.tell(trial(large))
    assert not ours.has_refused_value(small)


# Refusal


def test_the_smallest_size_that_did_not_fit_counts_for_its_own_combination() -> None:
    bench = linear()
    ours = feasibility(bench, cautious=True)
    for size in (16, 32):
        ours.tell(trial(at(bench, size)))
    ours.tell(trial(at(bench, 4, precision="bf16")))
    assert ours.refused_size(at(bench, 64)) == 16
    assert ours.refused_size(at(bench, 16)) is None
    assert ours.refused_size(at(bench, 64, precision="bf16")) == 4
    assert ours.refusal(at(bench, 64)) == "the same combination did not fit at micro batch 16"
    assert feasibility(bench).refusal(at(bench, 64)) is None


def test_the_latest_trial_of_a_plan_counts() -> None:
    bench = linear()
    ours = feasibility(bench, cautious=True)
    ours.tell(trial(at(bench, 16)))
    ours.tell(trial(at(bench, 16), bench.evaluate(at(bench, 4), Purpose.PROBE)))
    assert ours.refused_size(at(bench, 64)) is None


def test_a_lower_bound_above_the_budget_refuses_a_plan() -> None:
    bench = linear(budget_bytes=1500 * MIB)
    sure = Fixed(Estimate(value_bytes=3000 * MIB, lower_bytes=2000 * MIB, basis="by hand"))
    reason = feasibility(bench, sure).refusal(at(bench, 64))
    assert reason == "needs at least 1.953 GiB, above the budget of 1.465 GiB (by hand)"


@pytest.mark.parametrize(
    ("estimate", "reason"),
    [
        ({"value_bytes": 1510, "lower_bytes": 1490}, "is estimated to need"),
        ({"value_bytes": 2400}, "is guessed to need"),
        ({"value_bytes": 2000}, ""),  # a loose estimate refuses above 1.5 times the budget
        ({"value_bytes": 2400, "lower_bytes": 300}, "is estimated to need"),
        ({"value_bytes": 2000, "lower_bytes": 300}, ""),
        ({"value_bytes": 1510, "lower_bytes": 1490, "worst_case": True}, ""),
        ({"value_bytes": 1490, "lower_bytes": 1480}, ""),
    ],
)
def test_under_caution_a_value_above_the_budget_refuses_a_plan(estimate: dict[str, int | bool], reason: str) -> None:
    bench = linear(budget_bytes=1500)
    ours = [
        feasibility(bench, Fixed(Estimate.model_validate(estimate)), cautious=cautious) for cautious in (False, True)
    ]
    careless, careful = (each.refusal(at(bench, 64)) for each in ours)
    assert careless is None
    assert (careful or "").startswith(reason)
    assert (careful is None) is not bool(reason)


@pytest.mark.parametrize(("freed", "refused"), [(0, True), (200, False)])
def test_a_guess_counts_what_the_values_of_a_plan_free(freed: int, refused: bool) -> None:
    bench = linear(budget_bytes=1500)
    saving = Knob(name="states", values=("float32", "low"), default="float32", frees_bytes=(0, freed))
    bench.space = space_of([saving], (4, 64), 4)
    ours = feasibility(bench, Fixed(Estimate(value_bytes=2400, basis="from another plan")), cautious=True)
    reason = ours.refusal(at(bench, 64, states="low"))
    assert (reason is not None) is refused
    assert ours.refusal(at(bench, 64)) is not None
    sure = feasibility(bench, Fixed(Estimate(value_bytes=2400, lower_bytes=2300)), cautious=True)
    assert sure.refusal(at(bench, 64, states="low")) is not None


def test_a_guess_from_the_baseline_counts_what_checkpointing_is_expected_to_save() -> None:
    bench = linear(budget_bytes=1000 * MIB)
    blocks = Knob(name="checkpointed_blocks", values=(0, 2, 4), default=0, growth=(1.0, 0.62, 0.25))
    bench.space = space_of([blocks], (4, 64), 64)
    ours = feasibility(bench, Measured(), cautious=True)
    memory = Memory(allocated_bytes=2550 * MIB, judged_bytes=2550 * MIB, judged_by="footprint", static_bytes=300 * MIB)
    seen = Measurement(samples_per_step=64, step_times_s=(6.4,) * 3, memory=memory)
    ours.tell(trial(bench.space.baseline, Outcome(status=Status.OVER_BUDGET, reason="over", measurement=seen)))
    assert ours.refusal(bench.space.baseline.replace(checkpointed_blocks=4)) is None  # 300 and a quarter of 2,250 MiB
    reason = ours.refusal(bench.space.baseline.replace(checkpointed_blocks=2)) or ""
    assert "is guessed to need 1.6" in reason  # 300 and 0.62 of 2,250 MiB; the baseline needs 2.49 GiB


def test_under_caution_the_observed_error_of_estimates_admits_a_plan_that_is_estimated_above_the_budget() -> None:
    bench = linear()
    plan = at(bench, 16)
    bench.budget_bytes = round(1.03 * bench.peak_bytes(plan))
    ours = feasibility(bench, Estimates(exact(bench, 1.04)), cautious=True)
    assert ours.refusal(plan) is not None
    for precision in ("float32", "tf32", "bf16"):
        ran(ours, bench, at(bench, 4, precision=precision))
    assert ours.refusal(plan) is None
    assert ours.is_likely(plan)
    assert ours.refusal(at(bench, 32)) is not None
