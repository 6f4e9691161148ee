"""Verdicts: what is claimed of a night, against which nights, and with which evidence."""

from time import perf_counter

import pytest

from autofit.nightly.levels import NightReading
from autofit.nightly.records import HistorySegment, Verdict, VerdictKind
from autofit.nightly.verdict import Tonight, failed, judge, level_accepted, level_of, rate_text
from tests.nightly.history_samples import HERE, PLAN, record
from tests.nightly.judged_nights import MIB, Judgements, after, figures, kinds


def test_the_first_five_nights_are_reported_and_not_compared() -> None:
    history = after(6)
    assert kinds(history.records) == ["cannot compare"] * 5 + ["steady"]
    assert "the first night of this job" in history.records[0].verdict.reason
    assert "1 night more is needed" in history.records[3].verdict.reason
    assert history.asked == 0


def test_a_drop_is_a_regression_only_if_a_second_measurement_agrees() -> None:
    history = after(20)
    doubted = history.night(94.0, again=100.0)
    assert (doubted.verdict.kind, doubted.verdict.moved) == (VerdictKind.STEADY, ())
    assert doubted.confirmation is not None
    assert "once, not when measured again" in doubted.verdict.reason
    confirmed = history.night(94.0, again=94.2)
    assert (confirmed.verdict.kind, confirmed.verdict.moved) == (VerdictKind.REGRESSION, ("slower",))
    assert "6.0% lower than the median of 14 nights, 100 samples/s" in confirmed.verdict.reason
    assert history.asked == 2
    low, high = confirmed.verdict.low_per_s, confirmed.verdict.high_per_s
    assert low is not None
    assert high is not None
    assert 94.2 < low < 98.1 < 101.9 < high


def test_a_regression_stays_one_until_the_job_is_back() -> None:
    history = after(20)
    for _ in range(30):
        assert history.night(94.0).verdict.kind is VerdictKind.REGRESSION
    assert history.records[-1].verdict.since == history.records[20].night
    assert history.night(100.0, again=94.0).verdict.kind is VerdictKind.REGRESSION
    assert history.night(100.0).verdict.kind is VerdictKind.STEADY
    assert "is back" in history.records[-1].verdict.reason


def test_once_a_person_accepts_the_level_later_nights_are_compared_with_it() -> None:
    history = after(20)
    assert level_accepted(history.records, id="x", night="2026-12-01", at="2026-12-01") is None
    for _ in range(3):
        history.night(94.0)
    accepted = level_accepted(history.records, id="x", night="2026-12-01", at="2026-12-01")
    assert accepted is not None
    assert "throughput of 94 samples/s since" in accepted.verdict.reason
    history.records.append(accepted)
    assert history.night(94.1).verdict.kind is VerdictKind.STEADY
    assert history.night(88.0).verdict.kind is VerdictKind.REGRESSION


def test_a_faster_job_is_said_to_be_faster_and_then_normal() -> None:
    history = after(20)
    history.calm(6, level=1.1)
    assert kinds(history.records[20:]) == ["faster"] * 5 + ["steady"]


def test_slow_growth_of_memory_is_found_though_each_night_is_like_the_last() -> None:
    history, peak = after(20), 100 * MIB
    while history.records[-1].verdict.kind is not VerdictKind.REGRESSION and len(history.records) < 40:
        peak = round(peak * 1.002)
        history.night(100.0, peak_bytes=peak)
    assert 28 <= len(history.records) <= 32
    verdict = history.records[-1].verdict
    assert verdict.moved == ("more memory",)


def test_another_driver_begins_a_segment_and_is_no_regression() -> None:
    history = after(20)
    newer = HERE.model_copy(update={"versions": {"torch": "2.13.0", "driver": "580.2"}})
    verdict = history.night(80.0, environment=newer).verdict
    assert verdict.kind is VerdictKind.CANNOT_COMPARE
    assert verdict.changed == ("driver: 580.2, was ",)
    assert "throughput is -20.0% from the median of the previous segment" in verdict.reason
    assert "1 of its segment" in verdict.reason


def test_a_regression_names_what_changed_since_the_last_steady_night() -> None:
    history = after(20)
    other = HERE.model_copy(update={"versions": {"torch": "2.13.0", "python": "3.12.1"}})
    verdict = history.night(90.0, environment=other).verdict
    assert verdict.kind is VerdictKind.REGRESSION
    assert verdict.changed == ("python: 3.12.1, was absent",)


def test_a_peak_above_the_budget_does_not_fit() -> None:
    history = after(10)
    verdict = history.night(100.0, peak_bytes=101 * MIB, budget_bytes=100 * MIB).verdict
    assert verdict.kind is VerdictKind.DOES_NOT_FIT
    assert "above the budget of 100 MiB" in verdict.reason


@pytest.mark.parametrize(("fits", "kind"), [(False, VerdictKind.DOES_NOT_FIT), (True, VerdictKind.ERROR)])
def test_a_plan_that_did_not_run_has_a_verdict_too(fits: bool, kind: VerdictKind) -> None:
    past = [record(0)]
    newer = HERE.model_copy(update={"versions": {"torch": "2.14.0"}})
    verdict = failed(past, HistorySegment.of(newer, PLAN), newer, "out of memory in backward.", fits=fits)
    assert (verdict.kind, verdict.reason) == (kind, "out of memory in backward")
    assert verdict.changed == ("torch: 2.14.0, was 2.13.0",)
    assert failed([], HistorySegment.of(HERE, PLAN), HERE, "no such file", fits=True).changed == ()


def test_a_year_is_judged_in_less_than_ten_milliseconds_a_night() -> None:
    history = after(365)
    tonight = figures(100.0)
    again = Judgements(list(history.records))
    began = perf_counter()
    for _ in range(5):
        again.night(tonight.rate_per_s)
    assert (perf_counter() - began) / 5 < 0.05


def test_other_units_and_memory_readings_are_not_compared() -> None:
    history = after(10)
    assert history.night(100.0, unit="tokens").verdict.changed == ("unit: tokens, was samples",)
    other = figures(100.0).model_copy(update={"judged_by": "allocated"})
    past = after(10).records
    found, _ = judge(past, Tonight(HistorySegment.of(HERE, PLAN), HERE, other), lambda: None)
    assert found.changed == ("memory reading: allocated, was reserved",)


def test_from_the_first_night_a_collapse_is_seen_against_the_search_that_found_the_plan() -> None:
    history = Judgements()
    first = history.night(98.0, tuned_per_s=100.0).verdict
    assert first.kind is VerdictKind.CANNOT_COMPARE
    assert "throughput is -2.0% from the search that found the plan" in first.reason
    assert history.asked == 0
    assert history.night(60.0, again=95.0, tuned_per_s=100.0).verdict.kind is VerdictKind.CANNOT_COMPARE
    lost = history.night(40.0, again=41.0, tuned_per_s=100.0).verdict
    assert (lost.kind, lost.moved, lost.expected_per_s) == (VerdictKind.REGRESSION, ("slower",), 100.0)
    assert "60% lower than in the search that found the plan: 40 samples/s, measured again 41" in lost.reason
    assert history.night(40.0, tuned_per_s=100.0).verdict.since == history.records[2].night
    assert history.night(99.0, tuned_per_s=100.0).verdict.kind is VerdictKind.CANNOT_COMPARE
    assert history.night(40.0).verdict.kind is VerdictKind.CANNOT_COMPARE, "that search is not comparable"


def test_a_band_that_hides_a_loss_is_too_noisy_to_tell_and_a_collapse_in_it_is_still_seen() -> None:
    history = Judgements()
    for rate_per_s in (100.0, 160.0, 40.0, 120.0, 90.0, 150.0, 60.0):
        history.night(rate_per_s, again=100.0, tuned_per_s=100.0)
    for noisy in (history.records[-1].verdict, history.night(95.0).verdict):
        assert noisy.kind is VerdictKind.CANNOT_COMPARE
        assert noisy.reason.startswith("too noisy to tell: ")
        assert noisy.moved == ()
    asked = history.asked
    collapsed = history.night(9.0, again=10.0, tuned_per_s=100.0).verdict
    assert (collapsed.kind, collapsed.moved) == (VerdictKind.REGRESSION, ("slower",))
    assert history.asked == asked + 1


def test_a_level_that_a_person_accepted_is_not_held_against_the_search_any_more() -> None:
    history = Judgements()
    history.night(40.0, tuned_per_s=100.0)
    accepted = level_accepted(history.records, id="x", night="2026-12-01", at="2026-12-01")
    assert accepted is not None
    history.records.append(accepted)
    assert history.night(40.0, tuned_per_s=100.0).verdict.kind is VerdictKind.CANNOT_COMPARE


def said(first: NightReading, second: NightReading | None = None) -> str:
    """Returns the reason of a night after 20 nights of 100 samples/s and 100 MiB."""
    history = Judgements()
    for _ in range(20):
        history.night(100.0)
    tonight = Tonight(HistorySegment.of(HERE, PLAN), HERE, figures(first.rate_per_s, round(first.peak_bytes)))
    again = None if second is None else figures(second.rate_per_s, round(second.peak_bytes))
    return judge(history.records, tonight, lambda: again)[0].reason


def test_a_quiet_night_is_inside_both_bands() -> None:
    assert said(NightReading(101.0, 100 * MIB)) == (
        "throughput 101 samples/s is inside its band of 14 nights, 98 samples/s to 102 samples/s; "
        "the peak 100 MiB is inside its band of 14 nights, 98 MiB to 102 MiB"
    )


def test_a_claim_comes_first_with_both_readings() -> None:
    slow = NightReading(90.0, 100 * MIB)
    assert said(slow, NightReading(91.0, 100 * MIB)).startswith(
        "throughput is 10.0% lower than the median of 14 nights, 100 samples/s: tonight 90 samples/s, measured again "
        "91 samples/s, band 98 samples/s to 102 samples/s; "
    )
    fat = NightReading(100.0, 110 * MIB)
    assert said(fat, fat).startswith("the peak is 10.0% higher than the median of 14 nights, 100 MiB")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (NightReading(100.0, 100 * MIB), "was lower than expected once, not when measured again"),
        (None, "was lower than expected, and was not measured again"),
    ],
)
def test_a_doubt_is_named(second: NightReading | None, words: str) -> None:
    assert words in said(NightReading(90.0, 100 * MIB), second)


def test_numbers_have_their_units() -> None:
    assert rate_text(1234.5, "tokens") == "1,234 tokens/s"


NEWER = HERE.model_copy(update={"versions": {"torch": "2.14.0"}})


def tonight() -> Tonight:
    return Tonight(HistorySegment.of(HERE, PLAN), HERE, figures(100.0))


def test_records_of_other_segments_units_and_readings_are_left_out() -> None:
    mine = record(0, accepted=figures(100.0))
    others = [
        record(1, segment=HistorySegment.of(NEWER, PLAN)),
        record(2, accepted=figures(100.0), unit="tokens"),
        record(3),  # another memory reading
        record(4, segment=None),
    ]
    assert tonight().comparable([mine, *others]) == [mine]
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
    assert tonight().reading == (100.0, 100 * MIB)
