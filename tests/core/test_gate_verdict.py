"""Verdicts survive JSON, and an entry of another version is refused."""

import pytest
from pydantic import ValidationError

from autofit.core.gate_verdict import GateVerdict, GateVerdicts


def test_verdicts_survive_json() -> None:
    found = GateVerdict(
        passed=True, reason="alike", weighing="batch['labels'] != -100", moves=("steps",), evaluated=True
    )
    kept = GateVerdicts(environment="0f1e2d3c", found={"accumulation": found})
    assert GateVerdicts.model_validate_json(kept.model_dump_json()) == kept


def test_an_entry_of_another_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        GateVerdict.model_validate({"passed": True, "reason": "alike", "of_a_newer_version": 1})
