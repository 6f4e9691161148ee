"""The result of a night: it survives its text, and nothing is added to it by mistake."""

import pytest
from pydantic import ValidationError

from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from autofit.nightly.result import NightResult


def test_a_result_survives_its_text_and_refuses_unknown_fields() -> None:
    record = NightRecord(
        id="a", job="gpt", night="n", at="t", verdict=Verdict(kind=VerdictKind.ERROR, reason="your code failed")
    )
    result = NightResult(night="n", records=(record,), unchecked={"bert": "busy"}, notes=("a note",), exit_code=6)
    assert NightResult.model_validate_json(result.model_dump_json(by_alias=True)) == result
    with pytest.raises(ValidationError):
        NightResult.model_validate({"night": "n", "code": 3})
