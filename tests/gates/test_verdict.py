"""Verdicts are read back as they were written, and are held against the plans that have their values."""

import pytest
from pydantic import ValidationError

from autofit.core.plan import Plan
from autofit.gates.verdict import Checked, GateVerdict, at_fault, together, values_to_check

BASELINE = Plan(values={"micro_batch_size": 8, "accumulation_steps": 2, "precision": "fp32", "compile": "off"})
FAST = BASELINE.replace(micro_batch_size=4, accumulation_steps=4, precision="bf16", compile="blocks")
PASSED, FAILED = GateVerdict(passed=True, reason="alike"), GateVerdict(passed=False, reason="other")


def test_a_result_is_read_back_as_it_was_written() -> None:
    verdict = GateVerdict(passed=True, reason="alike", weighing="batch['labels'] != -100", moves=("steps",))
    found = Checked(verdicts={"accumulation": verdict}, caveats=("a note",))
    assert Checked.model_validate_json(found.model_dump_json()) == found


def test_a_verdict_of_a_newer_version_is_not_read() -> None:
    with pytest.raises(ValidationError):
        GateVerdict.model_validate({"passed": True, "reason": "alike", "of_a_newer_version": 1})


def test_what_differs_from_the_baseline_is_checked() -> None:
    assert values_to_check(BASELINE, BASELINE, free=False) == []
    assert values_to_check(FAST, BASELINE, free=False) == ["precision=bf16", "compile=blocks", "accumulation"]
    larger = BASELINE.replace(micro_batch_size=16)
    assert values_to_check(larger, BASELINE, free=True) == ["batch_size"]


def test_a_failure_of_several_values_is_held_against_plans_that_have_them_all() -> None:
    values = values_to_check(FAST, BASELINE, free=False)
    both = together(["compile=blocks", "precision=bf16"])
    assert at_fault(values, {"compile=blocks": PASSED, both: FAILED}) == both
    assert at_fault(["compile=blocks"], {both: FAILED}) == ""
    assert at_fault(values, {"accumulation": FAILED}) == "accumulation"
