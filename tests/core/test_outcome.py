import pytest
from pydantic import ValidationError

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status

MEASUREMENT = Measurement(
    step_times_s=(1.0,),
    samples_per_step=1,
    memory=Memory(allocated_bytes=1, judged_bytes=1, judged_by="test"),
)


def test_measured_needs_a_measurement() -> None:
    assert Outcome(status=Status.MEASURED, measurement=MEASUREMENT).measured
    with pytest.raises(ValidationError, match="needs a measurement"):
        Outcome(status=Status.MEASURED, reason="fine")


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.MEASURED])
def test_every_other_outcome_needs_a_reason_and_cannot_be_recommended(status: Status) -> None:
    with pytest.raises(ValidationError, match="needs a reason"):
        Outcome(status=status)
    assert not Outcome(status=status, reason="because", measurement=MEASUREMENT).measured


def test_only_a_lack_of_memory_is_cured_by_a_smaller_batch() -> None:
    assert {status for status in Status if status.does_not_fit} == {
        Status.OUT_OF_MEMORY,
        Status.OVER_BUDGET,
        Status.OUT_OF_HOST_MEMORY,
    }


def test_an_outcome_survives_json() -> None:
    outcome = Outcome(status=Status.OVER_BUDGET, reason="too much", measurement=MEASUREMENT, duration_s=1.5)
    assert Outcome.model_validate_json(outcome.model_dump_json()) == outcome
