"""What is known before a search, and what is asked of it, travels between processes unchanged."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from autofit.core.briefing import Briefing, Options
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Conflict, Refusal, SpaceFacts

BRIEFING = Briefing(
    space=SpaceFacts(
        knobs=(Knob(name="flag", values=(True, False), default=False), Knob(name="level", values=(0, 1), default=0)),
        sizes=(1, 2),
        global_batch_size=4,
        baseline=Plan(values={"micro_batch_size": 2, "accumulation_steps": 2, "flag": False, "level": 0}),
        refused=(Refusal(name="x", reason="why"),),
        forbidden=(Conflict(values={"flag": True, "level": 1}, reason="they conflict"),),
    ),
    environment=Environment(workload="a-b", device_type="cpu", device_name="A CPU", capacity_bytes=1),
    budget=Budget(memory_bytes=5, memory_note="as asked"),
    enforced=True,
    caveats=("the loss was inferred",),
)


def test_a_briefing_survives_json_with_true_and_one_kept_apart() -> None:
    again = Briefing.model_validate(json.loads(json.dumps(BRIEFING.model_dump(mode="json"))))
    assert again == BRIEFING
    assert [type(value) for value in again.space.knobs[0].values] == [bool, bool]
    assert [type(value) for value in again.space.knobs[1].values] == [int, int]


@pytest.mark.parametrize("budget", [None, 2**40, 0.5, 1.0, "20GiB"])
def test_a_budget_keeps_its_kind_on_the_way_to_a_worker(budget: Any) -> None:
    """1.0 is all of the memory, 1 would be one byte."""
    again = Options.model_validate(json.loads(json.dumps(Options(memory_budget=budget).model_dump(mode="json"))))
    assert again.memory_budget == budget
    assert type(again.memory_budget) is type(budget)


def test_strategies_may_come_as_a_list() -> None:
    assert Options.model_validate({"strategies": ["batching"]}).strategies == ("batching",)


@pytest.mark.parametrize("values", [{"numerics": "precise"}, {"memory": 3}, {"seed": "x"}])
def test_what_is_not_an_option_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options.model_validate(values)


def test_records_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        BRIEFING.enforced = False
    with pytest.raises(ValidationError):
        Options().seed = 3
