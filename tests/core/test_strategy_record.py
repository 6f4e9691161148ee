"""A technique as a line of text."""

import pytest
from pydantic import ValidationError

from autofit.core.space import StrategyRecord

PRECISION = StrategyRecord(
    name="precision", knobs=("precision",), about="computes in bf16", cost="digits of the gradient", effect="rounding"
)


def test_it_says_what_it_does_what_it_costs_and_whether_results_change() -> None:
    assert str(PRECISION) == "precision: computes in bf16; costs digits of the gradient; results differ by rounding"
    assert str(PRECISION.model_copy(update={"effect": "exact"})).endswith("; results are the same")


def test_what_it_does_not_say_is_left_out() -> None:
    silent = StrategyRecord(name="mark", knobs=("mark",), about="", cost="", effect="changes the result")
    assert str(silent) == "mark: changes the result"


def test_another_effect_is_refused() -> None:
    with pytest.raises(ValidationError):
        StrategyRecord.model_validate({**PRECISION.model_dump(), "effect": "none"})
