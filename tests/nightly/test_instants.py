"""Times in records: with and without a time zone, and texts that are no times."""

from datetime import UTC, datetime

import pytest

from autofit.nightly.instants import instant

NOW = datetime(2026, 11, 25, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-11-25T01:00:00", "2026-11-25T01:00:00+00:00", "2026-11-25T02:30:00+01:30"])
def test_a_time_is_in_utc(text: str) -> None:
    found = instant(text)
    assert found == NOW
    assert found is not None
    assert found.tzinfo is UTC


@pytest.mark.parametrize("text", ["tonight", "", "2026-13-01", "0001-01-01T00:00:00+23:00"])
def test_other_texts_are_no_times(text: str) -> None:
    assert instant(text) is None  # the last one is before the first year
