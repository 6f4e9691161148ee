import pytest
from pydantic import ValidationError

from autofit.core.plan import Plan, same_value

PLAN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 4, "precision": "bf16", "fused": True})


def test_equal_plans_have_equal_keys_whatever_their_order() -> None:
    turned = Plan(values=dict(reversed(list(PLAN.values.items()))))
    assert turned == PLAN
    assert turned.key == PLAN.key
    assert len({turned, PLAN}) == 1


def test_true_and_one_are_different_values() -> None:
    assert Plan(values={"fused": True}) != Plan(values={"fused": 1})
    assert Plan(values={"fused": "1"}) != Plan(values={"fused": 1})


def test_a_plan_survives_json_with_its_types() -> None:
    again = Plan.model_validate_json(PLAN.model_dump_json())
    assert again == PLAN
    assert again.values["fused"] is True
    assert type(again.values["micro_batch_size"]) is int


def test_the_batch_is_read_from_the_plan() -> None:
    assert (PLAN.micro_batch_size, PLAN.accumulation_steps, PLAN.global_batch_size) == (8, 4, 32)
    assert Plan(values={"micro_batch_size": 3}).global_batch_size == 3


def test_the_combination_is_the_plan_without_its_batch() -> None:
    assert PLAN.combination == Plan(values={"precision": "bf16", "fused": True})
    assert PLAN.combination.combination == PLAN.combination


def test_replace_leaves_the_original() -> None:
    other = PLAN.replace(precision="float32")
    assert other.values["precision"] == "float32"
    assert PLAN.values["precision"] == "bf16"


def test_changes_are_the_values_that_differ() -> None:
    assert PLAN.changes_from(PLAN.replace(precision="float32")) == {"precision": "bf16"}
    assert PLAN.changes_from(PLAN) == {}
    assert Plan().changes_from(PLAN) == {}
    assert PLAN.combination.changes_from(Plan()) == {"precision": "bf16", "fused": True}


def test_a_change_of_type_is_a_change() -> None:
    assert Plan(values={"fused": True}).changes_from(Plan(values={"fused": 1})) == {"fused": True}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1, True),
        ("a", "a", True),
        (1, True, False),
        (0, False, False),
        (1, 1.0, False),
        (1, "1", False),
        (None, 0, False),
    ],
)
def test_values_are_the_same_when_their_types_are(one: object, other: object, same: bool) -> None:
    assert same_value(one, other) is same_value(other, one) is same


def test_a_plan_reads_as_text() -> None:
    assert str(Plan(values={"a": 1, "b": "x"})) == "a=1 b=x"
    assert str(Plan()) == "as it is"


def test_a_plan_is_frozen_and_strict() -> None:
    with pytest.raises(ValidationError):
        PLAN.values = {}
    with pytest.raises(ValidationError):
        Plan.model_validate({"values": {}, "surprise": 1})
