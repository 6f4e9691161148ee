"""Conflicts are found completely, from few questions; only plans with pinned values are searched."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from autofit.core.briefing import Options
from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.devices import choose
from autofit.probing import survey
from autofit.probing.local_bench import LocalBench
from autofit.probing.survey import check_size, conflicts
from tests.cpu import needs_bf16
from tests.probing import targets
from tests.probing.test_survey import Offering, survey_of

KNOBS = tuple(
    Knob(name=name, values=values, default=values[0])
    for name, values in {"a": (0, 1, 2), "b": ("x", "y"), "c": (True, False), "d": (1, 2, 3)}.items()
)


def space(*objections: Callable[[Plan], str | None], knobs: tuple[Knob, ...] = KNOBS, **changes: Any) -> SearchSpace:
    baseline = Plan(values={"micro_batch_size": 1} | {knob.name: knob.default for knob in knobs})
    facts = SpaceFacts(knobs=knobs, sizes=(1,), global_batch_size=None, baseline=baseline, **changes)
    return SearchSpace(facts.model_copy(update={"forbidden": tuple(conflicts(knobs, objections))}))


def never(plan: Plan) -> str | None:
    return None


def pair(plan: Plan) -> str | None:
    return "a=2 needs b=x" if plan.values["a"] == 2 and plan.values.get("b") != "x" else None


def three(plan: Plan) -> str | None:
    changed = plan.values.get("a") and plan.values["c"] is False and plan.values["d"] == 3
    return "not all of them" if changed else None


def count(plan: Plan) -> str | None:
    """Reads the whole plan."""
    changes = sum(value != knob.default for knob, value in zip(KNOBS, plan.values.values(), strict=True))
    return "too many changes" if changes > 2 else None


def by_key(plan: Plan) -> str | None:
    return "that one" if '"d":3' in plan.key and plan.combination.replace(b="x").values["c"] is True else None


def optional(plan: Plan) -> str | None:
    return "e is not in play" if "e" in plan.values or plan.values.get("e") else None


def drawn(seed: int) -> Callable[[Plan], str | None]:
    """Returns a random decision tree over the knobs."""

    def objection(plan: Plan) -> str | None:
        chance, depth = random.Random(seed), 0
        while chance.random() < 0.75 and depth < 4:
            name = chance.choice("abcd")
            chance, depth = random.Random(f"{seed} {name} {plan.values[name]}"), depth + 1
        return f"drawn at depth {depth}" if chance.random() < 0.4 else None

    return objection


OBJECTIONS = [(never,), (pair,), (three,), (count,), (by_key,), (optional,), (pair, three, count)]


@pytest.mark.parametrize("objections", [*OBJECTIONS, *((drawn(seed),) for seed in range(20))])
def test_a_combination_is_forbidden_if_a_strategy_objects_and_for_its_reason(objections: Any) -> None:
    found = space(*objections)
    for values in product(*(knob.values for knob in KNOBS)):
        plan = Plan(values=dict(zip("abcd", values, strict=True)))
        expected = next((reason for objection in objections if (reason := objection(plan))), None)
        assert found.conflict(plan) == expected
        assert plan == found.baseline.combination or (plan in set(found.combinations())) is (expected is None)


def test_only_knobs_that_a_strategy_reads_are_varied() -> None:
    many = (*KNOBS, *(Knob(name=f"k{at}", values=tuple(range(10)), default=0) for at in range(20)))
    asked = []

    def objection(plan: Plan) -> str | None:
        asked.append(plan)
        return pair(plan)

    (found,) = conflicts(many, [objection])
    assert found.values == {"a": 2, "b": "y"}
    assert len(asked) < 10


def test_a_strategy_that_reads_everything_is_named_by_what_it_reads() -> None:
    many = tuple(Knob(name=f"k{at}", values=tuple(range(10)), default=0) for at in range(6))
    with pytest.raises(SpaceError, match=r"the values of k0, k1, k2, k3, k4, k5 together .* search fewer strategies"):
        list(conflicts(many, [lambda plan: "odd" if "1" in plan.key else None]))


def test_conflicts_keep_a_large_space_small_enough_to_be_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MAX_PLANS", 10_000)
    many = tuple(Knob(name=f"k{at}", values=tuple(range(4)), default=0) for at in range(7))

    def alone(plan: Plan) -> str | None:
        return (
            "k0 goes with nothing" if plan.values["k0"] and any(plan.values[f"k{at}"] for at in range(1, 7)) else None
        )

    with pytest.raises(SpaceError, match="more than 10,000 plans"):
        check_size(space(never, knobs=many).facts)
    check_size(space(alone, knobs=many).facts)


def pinned_space(pinned: dict[str, Any], *strategies: Offering) -> SpaceFacts:
    offering = strategies or (Offering("a", (0, 1, 2)), Offering("b", ("x", "y")))
    looking = survey_of(*offering)
    looking.pinned = pinned
    return looking.run()


def test_only_plans_with_the_value_are_in_the_space_and_the_baseline_stays() -> None:
    facts = pinned_space({"a": 2})
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
    facts = pinned_space({"a": 0})
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
        pinned_space(pinned)
    assert said in str(error.value)


def test_pins_that_conflict_are_explained() -> None:
    strategies = (Offering("a", (0, 1)), Offering("b", (0, 1), conflicts="a"))
    with pytest.raises(SpaceError, match=r"a=1, b=1 cannot be pinned together: b does not go with a\. Pin fewer"):
        pinned_space({"a": 1, "b": 1}, *strategies)
    assert pinned_space({"a": 1}, *strategies).pinned == {"a": 1}


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
