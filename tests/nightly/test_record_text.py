"""A record survives its text, whatever its texts contain; a newer version is refused."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.core.errors import StudyError
from autofit.core.plan import Plan
from autofit.nightly.record_text import check_schema, from_text, to_text
from autofit.nightly.records import Figures, NightRecord, Verdict, VerdictKind
from autofit.study.records import STORED_LETTERS
from tests.nightly.history_samples import PLAN, record

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
    check_schema(text, "here")


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


def test_the_texts_of_a_long_record_are_shortened_and_its_figures_are_kept() -> None:
    night = record(1, notes=("n" * 9000,) * 9, verdict=record(1).verdict.model_copy(update={"reason": "r" * 90_000}))
    found = from_text(to_text(night))
    assert found is not None
    assert len(json.dumps(to_text(night))) < 2**16
    assert len(to_text(night)) <= STORED_LETTERS
    assert found.notes[-1] == "the texts of this record were shortened"
    assert (found.accepted, found.segment, found.id) == (night.accepted, night.segment, night.id)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema": "autofit.night/1"}', "3", "\x00"])
def test_what_is_not_a_record_is_none(text: str) -> None:
    assert from_text(text) is None


@pytest.mark.parametrize("schema", ["autofit.night/2", '{"schema": "autofit.night/17", "x": 1}'])
def test_a_newer_version_is_refused(schema: str) -> None:
    with pytest.raises(
        StudyError, match=r"here has records of the schema autofit\.night/\d+; expected autofit\.night/1"
    ):
        check_schema(schema, "here")


@pytest.mark.parametrize("schema", [None, 3, "", "autofit.night/1", "{", '{"note": "autofit.night/2"}'])
def test_what_is_damaged_is_not_a_newer_version(schema: object) -> None:
    check_schema(schema, "here")
