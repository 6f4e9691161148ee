import pytest

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Conflict, SearchSpace, SpaceFacts, divisors
from tests.fakes import KNOBS, OPTIMIZER, PRECISION, space_of

SPACE = space_of(KNOBS, (4, 8, 16), 8)


def test_the_baselines_combination_comes_first_and_each_comes_once() -> None:
    combinations = list(SPACE.combinations())
    assert combinations[0] == SPACE.baseline.combination
    assert len(combinations) == len(set(combinations)) == 3 * 4 * 3 * 2


def without(*forbidden: Conflict) -> SearchSpace:
    return SearchSpace(SPACE.facts.model_copy(update={"forbidden": forbidden}))


def test_a_conflict_keeps_combinations_out() -> None:
    space = without(Conflict(values={"precision": "bf16"}, reason="not together"))
    assert all(c.values["precision"] != "bf16" for c in space.combinations())
    assert space.violation(SPACE.baseline.replace(precision="bf16")) == "not together"


def test_only_what_has_all_values_of_a_conflict_is_left_out_and_the_order_stays() -> None:
    pair = Conflict(values={"optimizer": "fused", "precision": "bf16"}, reason="not together")
    odd = Conflict(values={"precision": "int3"}, reason="no such value"), Conflict(values={"tile": 1}, reason="no knob")
    expected = [c for c in SPACE.combinations() if (c.values["optimizer"], c.values["precision"]) != ("fused", "bf16")]
    assert len(expected) == 3 * 4 * 3 * 2 - 4 * 2
    assert list(without(*odd, pair).combinations()) == expected


def test_the_first_conflict_that_applies_gives_the_reason() -> None:
    space = without(
        Conflict(values={"optimizer": "fused", "precision": "bf16"}, reason="first"),
        Conflict(values={"precision": "bf16"}, reason="second"),
    )
    assert space.violation(SPACE.baseline.replace(precision="bf16")) == "second"
    assert space.violation(SPACE.baseline.replace(precision="bf16", optimizer="fused")) == "first"


def test_the_baseline_is_in_the_space_even_if_it_is_forbidden() -> None:
    space = without(Conflict(values={"precision": SPACE.baseline.values["precision"]}, reason="no"))
    assert next(space.combinations()) == SPACE.baseline.combination
    assert {c.values["precision"] for c in list(space.combinations())[1:]} == {"tf32", "bf16"}


def test_forbidden_combinations_travel_with_the_facts() -> None:
    combination = SPACE.baseline.replace(precision="bf16").combination
    facts = without(Conflict(values=combination.values, reason="no kernel")).facts
    space = SearchSpace(SpaceFacts.model_validate_json(facts.model_dump_json()))
    assert space.violation(space.at(combination, 16)) == "no kernel"
    assert combination not in list(space.combinations())
    assert len(list(space.combinations())) == 3 * 4 * 3 * 2 - 1


def test_the_global_batch_is_kept_exactly() -> None:
    space = space_of((PRECISION, OPTIMIZER), (4, 8, 16), 8, global_batch_size=48)
    plan = space.at(space.baseline.combination, 16)
    assert (plan.micro_batch_size, plan.accumulation_steps, plan.global_batch_size) == (16, 3, 48)
    with pytest.raises(SpaceError, match="32 does not divide the global batch 48"):
        space.at(space.baseline.combination, 32)


def test_a_free_batch_does_not_accumulate() -> None:
    assert SPACE.at(SPACE.baseline.combination, 16).global_batch_size == 16


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (SPACE.baseline, None),
        (SPACE.baseline.replace(precision="int3"), "precision=int3 is not one of float32, tf32, bf16"),
        (SPACE.baseline.replace(tile=4), "no strategy in play owns tile"),
        (Plan(values={"micro_batch_size": 8}), "the plan has no value for precision"),
    ],
)
def test_what_is_not_in_the_space_is_named(plan: Plan, reason: str | None) -> None:
    assert SPACE.violation(plan) == reason


def test_divisors_are_those_of_the_number() -> None:
    assert divisors(48) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert divisors(1) == (1,)
    assert all(360 % d == 0 for d in divisors(360))


def test_a_plan_of_another_batch_is_not_in_the_space() -> None:
    space = space_of((PRECISION, OPTIMIZER), (4, 8, 16), 8, global_batch_size=48)
    plan = space.at(space.baseline.combination, 16)
    assert space.violation(plan) is None
    assert space.violation(space.baseline) is None
    found = str(space.violation(plan.replace(accumulation_steps=1)))
    assert found == "it has 16 x 1 samples per optimizer step, and this search runs 16 x 3"
    assert "not a size" in str(space.violation(plan.replace(micro_batch_size=24, accumulation_steps=2)))
    free = space_of((PRECISION, OPTIMIZER), (4, 8, 16), 8)
    assert "runs 16 x 1" in str(free.violation(plan))


def test_a_value_for_one_pass_is_only_in_plans_without_accumulation() -> None:
    update = Knob(name="update", values=(False, True), default=False, one_pass=(True,))
    space = space_of((update,), (4, 8, 16), 8, global_batch_size=16)
    early = space.baseline.replace(update=True).combination
    assert space.violation(space.at(early, 16)) is None
    assert space.violation(space.at(early, 8)) == "update=True does not admit accumulation"
    assert [plan.micro_batch_size for plan in space.plans() if plan.values["update"] is True] == [16]
    assert len(list(space.plans())) == 4
    free = space_of((update,), (4, 8, 16), 8)
    assert len(list(free.plans())) == 6


def test_a_value_for_accumulation_is_only_in_plans_with_it() -> None:
    sync = Knob(name="sync", values=(True, False), default=True, accumulated=(False,))
    space = space_of((sync,), (4, 8, 16), 8, global_batch_size=16)
    apart = space.baseline.replace(sync=False).combination
    assert space.violation(space.at(apart, 8)) is None
    assert space.violation(space.at(apart, 16)) == "sync=False needs accumulation"
    assert {plan.micro_batch_size for plan in space.plans() if plan.values["sync"] is False} == {4, 8}
