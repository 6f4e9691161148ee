"""Which records are compared, and how the level is read from them again."""

from autofit.nightly.comparison import ComparableNights, Tonight, level_of, reading
from autofit.nightly.records import HistorySegment, Verdict, VerdictKind
from tests.nightly.history_samples import HERE, PLAN, record
from tests.nightly.judged_nights import after, figures

NEWER = HERE.model_copy(update={"versions": {"torch": "2.14.0"}})


def tonight() -> Tonight:
    return Tonight("gpt", HistorySegment.of(HERE, PLAN), HERE, figures(100.0))


def test_records_of_other_segments_units_and_readings_are_left_out() -> None:
    mine = record(0, accepted=figures(100.0))
    others = [
        record(1, segment=HistorySegment.of(NEWER, PLAN)),
        record(2, accepted=figures(100.0), unit="tokens"),
        record(3),  # another memory reading
        record(4, segment=None),
    ]
    found = ComparableNights.of([mine, *others], tonight())
    assert found.comparable == (mine,)
    assert found.latest == others[2]
    assert found.measured(mine.night) == mine
    assert found.measured("never") is None
    assert tonight().changes_from(others[0])[0] == "torch: 2.13.0, was 2.14.0"


def test_nights_without_figures_are_not_in_the_level() -> None:
    failed = Verdict(kind=VerdictKind.DOES_NOT_FIT, reason="out of memory")
    records = [record(0), record(1, accepted=None), record(2, verdict=failed), record(3)]
    assert len(level_of(records).rate.reference) == 2


def test_the_level_that_is_read_from_the_history_has_the_open_regression() -> None:
    history = after(20)
    for _ in range(3):
        history.night(90.0)
    level = level_of(history.records)
    assert (level.rate.side, level.rate.since, len(level.rate.changed)) == (-1, history.records[20].night, 3)
    assert reading(figures(5.0, 7)) == (5.0, 7)
