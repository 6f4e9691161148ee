"""Pinned knobs: only plans with their values are searched, and a pin that cannot be is explained."""

from typing import Any

import pytest

from autofit.core.briefing import Options
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.devices import choose
from autofit.probing.local_bench import LocalBench
from tests.cpu import needs_bf16
from tests.probing import targets
from tests.probing.survey.test_survey import Offering, survey_of


def space(pinned: dict[str, Any], *strategies: Offering) -> SpaceFacts:
    offering = strategies or (Offering("a", (0, 1, 2)), Offering("b", ("x", "y")))
    survey = survey_of(*offering)
    survey.pinned = pinned
    return survey.run()


def test_only_plans_with_the_value_are_in_the_space_and_the_baseline_stays() -> None:
    facts = space({"a": 2})
    found = SearchSpace(facts)
    allowed = [plan for plan in found.plans() if found.violation(plan) is None and plan != found.baseline]
    assert {plan.values["a"] for plan in allowed} == {2}
    assert {plan.values["b"] for plan in allowed} == {"x", "y"}
    assert found.baseline.values["a"] == 0
    assert found.violation(found.baseline) is None
    assert found.unpinned(found.baseline) == "a is pinned to 2"
    other = found.baseline.replace(b="y")
    assert found.violation(other) == "a is pinned to 2"
    assert ("a", "pinned to 2") in [(refusal.name, refusal.reason) for refusal in facts.refused]


def test_a_knob_that_is_pinned_to_its_default_is_not_in_play() -> None:
    facts = space({"a": 0})
    assert [knob.name for knob in facts.knobs] == ["b"]
    assert SearchSpace(facts).unpinned(facts.baseline) is None


@pytest.mark.parametrize(
    ("pinned", "said"),
    [
        ({"a": 7}, "a=7 cannot be pinned. Expected one of 0, 1, 2."),
        ({"a": "never"}, "a=never cannot be pinned: not here. Expected one of 0, 1, 2."),
        ({"b": True}, "b=True cannot be pinned. Expected one of x, y."),
        ({"c": 1}, "'c' is not a knob in play here. The knobs in play are a: 0, 1, 2; b: x, y. Pin one of these."),
        ({"accumulation_steps": 2}, "accumulation_steps cannot be pinned: it follows from the global batch"),
    ],
)
def test_a_value_or_a_knob_that_is_not_there_is_explained(pinned: dict[str, Any], said: str) -> None:
    with pytest.raises(SpaceError) as error:
        space(pinned)
    assert said in str(error.value)


def test_pins_that_conflict_are_explained() -> None:
    strategies = (Offering("a", (0, 1)), Offering("b", (0, 1), conflicts="a"))
    with pytest.raises(SpaceError, match=r"a=1, b=1 cannot be pinned together: b does not go with a\. Pin fewer"):
        space({"a": 1, "b": 1}, *strategies)
    assert space({"a": 1}, *strategies).pinned == {"a": 1}


@needs_bf16
def test_a_real_workload_is_searched_at_one_precision_and_micro_batch() -> None:
    options = Options(pinned={"precision": "bf16", "micro_batch_size": 8}, without=("checkpointing",))
    with LocalBench(targets.make_mlp(), choose("cpu"), options) as bench:
        found = SearchSpace(bench.briefing.space)
        allowed = [plan for plan in found.plans() if found.violation(plan) is None]
        plans: list[Plan] = [plan for plan in allowed if plan != found.baseline]
        assert plans
        assert {(plan.micro_batch_size, plan.values["precision"]) for plan in plans} == {(8, "bf16")}
        assert not any("checkpointed_blocks" in plan.values for plan in plans)
