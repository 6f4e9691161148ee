"""The result of a night survives its text and cannot be changed."""

import pytest
from pydantic import ValidationError

from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from autofit.nightly.result import NightResult

NIGHT = "2026-11-25T01:00:00+00:00"


def test_a_result_survives_its_text() -> None:
    record = NightRecord(
        id="a", job="gpt", night=NIGHT, at=NIGHT, verdict=Verdict(kind=VerdictKind.ERROR, reason="no such file")
    )
    result = NightResult(
        night=NIGHT, records=(record,), problems=("jobs.yaml, line 3: found 1; expected a text",),
        unchecked={"vit": "the night's time is over"}, exit_code=5,
    )  # fmt: skip
    assert NightResult.model_validate_json(result.model_dump_json(by_alias=True)) == result


def test_a_result_is_frozen_and_knows_its_fields() -> None:
    result = NightResult(night=NIGHT)
    assert (result.records, result.problems, result.unchecked, result.exit_code) == ((), (), {}, 0)
    with pytest.raises(ValidationError):
        result.exit_code = 4
    with pytest.raises(ValidationError):
        NightResult(night=NIGHT, verdicts=())  # type: ignore[call-arg]
