import pytest
from pydantic import ValidationError

from autofit.core.knob import Knob, Trade


def test_the_default_has_to_be_one_of_the_values() -> None:
    with pytest.raises(ValidationError, match="default 'fp8'"):
        Knob(name="precision", values=("float32", "bf16"), default="fp8")


def test_true_and_one_are_different_values() -> None:
    knob = Knob(name="fused", values=(False, True), default=False)
    assert knob.admits(True)
    assert not knob.admits(1)
    assert not Knob(name="parts", values=(1, 2), default=1).admits(True)
    with pytest.raises(ValidationError):
        Knob(name="parts", values=(1, 2), default=True)


def test_types_survive_json() -> None:
    knob = Knob(name="mixed", values=(True, 1, "1"), default=1)
    again = Knob.model_validate_json(knob.model_dump_json())
    assert [type(value) for value in again.values] == [bool, int, str]
    assert type(again.default) is int


def test_fewer_values_keep_what_is_expected_of_them() -> None:
    knob = Knob(name="precision", values=("fp32", "bf16", "fp16"), default="fp32", growth=(1.0, 0.6, 0.7))
    fewer = knob.only(["fp32", "fp16"])
    assert (fewer.values, fewer.growth, fewer.expected) == (("fp32", "fp16"), (1.0, 0.7), ())
    assert Knob.model_validate_json(fewer.model_dump_json()) == fewer


@pytest.mark.parametrize("name", ["expected", "growth"])
def test_each_value_has_an_expectation_or_none_has(name: str) -> None:
    with pytest.raises(ValidationError, match="1 expectations for 2 values"):
        Knob.model_validate({"name": "parts", "values": (1, 2), "default": 1, name: (1.0,)})


@pytest.mark.parametrize("values", [(0, 2, 1), (0, "1"), (1, 2), (False, 1)])
def test_a_knob_that_trades_memory_counts_up_from_its_default(values: tuple[object, ...]) -> None:
    trade = {"technique": "splitting", "counted": "parts"}
    assert Knob.model_validate({"name": "parts", "values": (0, 1, 4), "default": 0, "trades_memory": trade})
    with pytest.raises(ValidationError, match=r"ascend from the default|default 0 is not one of"):
        Knob.model_validate({"name": "parts", "values": values, "default": 0, "trades_memory": trade})


def test_the_default_of_a_knob_that_trades_memory_is_its_first_value() -> None:
    with pytest.raises(ValidationError, match="ascend from the default"):
        Knob(name="parts", values=(0, 1), default=1, trades_memory=Trade(technique="splitting", counted="parts"))
