"""Records of a night: what may be compared, and their texts."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autofit.core.environment import Environment
from autofit.core.plan import Plan
from autofit.nightly.records import (
    Figures,
    HistorySegment,
    NightRecord,
    NightResult,
    Verdict,
    VerdictKind,
    from_text,
    to_text,
)
from tests.nightly.history_samples import record

PLAN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1})


def _environment(**changes: object) -> Environment:
    base = Environment(
        workload="w1", device_type="cuda", device_name="H100", capacity_bytes=80 * 2**30,
        versions={"torch": "2.13.0", "driver": "570.1", "python": "3.11.9"},
    )  # fmt: skip
    return base.model_copy(update=changes)


def test_a_segment_changes_with_workload_device_driver_torch_and_plan_and_with_nothing_else() -> None:
    first = HistorySegment.of(_environment(), PLAN)
    other_python = _environment(versions={"torch": "2.13.0", "driver": "570.1", "python": "3.12.1"})
    assert HistorySegment.of(other_python, PLAN) == first
    driver = HistorySegment.of(_environment(versions={"torch": "2.13.0", "driver": "580.2"}), PLAN)
    assert driver.changes(first) == ("driver: 580.2, was 570.1",)
    assert HistorySegment.of(_environment(workload="w2"), PLAN).changes(first) == ("workload: w2, was w1",)
    assert len(HistorySegment.of(_environment(), PLAN.replace(micro_batch_size=16)).changes(first)) == 1


def test_the_throughput_of_a_night_is_the_median_of_its_blocks() -> None:
    assert Figures(plan=PLAN, rates_per_s=(10.0, 30.0, 11.0), peak_bytes=5).rate_per_s == 11.0


def test_a_record_survives_its_text() -> None:
    record = NightRecord(
        id="a", job="gpt", night="2026-11-25T01:00:00+00:00", at="2026-11-25T01:02:00+00:00",
        environment=_environment(), segment=HistorySegment.of(_environment(), PLAN),
        accepted=Figures(plan=PLAN, rates_per_s=(1.5, 1.6), peak_bytes=7),
        verdict=Verdict(kind=VerdictKind.STEADY, reason="within the noise of 14 nights", compared_nights=14),
    )  # fmt: skip
    text = record.model_dump_json(by_alias=True)
    assert NightRecord.model_validate_json(text) == record
    assert '"schema":"autofit.night/1"' in text


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FLOATS = st.floats(allow_nan=False)
VALUES = st.dictionaries(TEXT, st.booleans() | st.integers(0, 99) | TEXT, max_size=3)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
RECORDS = st.builds(
    NightRecord, id=TEXT, job=TEXT, night=TEXT, at=TEXT, duration_s=FLOATS, probes=st.integers(0, 2**40), unit=TEXT,
    accepted=st.none() | st.builds(
        Figures, plan=st.builds(Plan, values=VALUES),
        rates_per_s=st.lists(FLOATS, min_size=1, max_size=4).map(tuple), peak_bytes=st.integers(0, 2**50),
    ),
    verdict=st.builds(Verdict, kind=st.sampled_from(VerdictKind), reason=TEXT, changed=TEXTS),
    notes=TEXTS,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(RECORDS)
def test_any_record_survives_its_text(night: NightRecord) -> None:
    text = to_text(night)
    assert from_text(text) == night
    assert text.isascii()
    assert json.dumps(json.loads(text)) == text  # so that a checksum of the text can be verified after reading JSON


def test_figures_that_are_not_numbers_survive() -> None:
    night = record(1, accepted=Figures(plan=PLAN, rates_per_s=(math.nan, math.inf, -math.inf), peak_bytes=1))
    found = from_text(to_text(night))
    assert found is not None
    assert found.accepted is not None
    assert [repr(rate) for rate in found.accepted.rates_per_s] == ["nan", "inf", "-inf"]


def test_unpaired_surrogates_are_replaced() -> None:
    found = from_text(to_text(record(1, notes=("file \udc80.py",))))
    assert found is not None
    assert found.notes == ("file ?.py",)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema": "autofit.night/1"}', "3", "\x00"])
def test_what_is_not_a_record_is_none(text: str) -> None:
    assert from_text(text) is None


def test_a_result_survives_its_text_and_refuses_unknown_fields() -> None:
    record = NightRecord(
        id="a", job="gpt", night="n", at="t", verdict=Verdict(kind=VerdictKind.ERROR, reason="your code failed")
    )
    result = NightResult(night="n", records=(record,), unchecked={"bert": "busy"}, notes=("a note",), exit_code=6)
    assert NightResult.model_validate_json(result.model_dump_json(by_alias=True)) == result
    with pytest.raises(ValidationError):
        NightResult.model_validate({"night": "n", "code": 3})
