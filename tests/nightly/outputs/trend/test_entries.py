"""Entries: every night is in one, noteworthy nights stay alone, and a long history fits."""

import random
from collections.abc import Sequence

import pytest

from autofit.nightly.outputs.trend.entries import TrendEntry, entries_of
from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from tests.nightly import samples

HISTORY = samples.year()


def nights(entries: Sequence[TrendEntry]) -> list[NightRecord]:
    """Returns the nights of all entries."""
    return [record for entry in entries for record in entry.records]


@pytest.mark.parametrize("job", HISTORY)
@pytest.mark.parametrize("most", [40, 65, 400])
def test_no_night_is_lost_and_the_newest_are_alone(job: str, most: int) -> None:
    records = HISTORY[job]
    found = entries_of(records, most)
    assert len(found) <= most
    assert nights(found) == list(records)
    alone = [len(entry.records) == 1 for entry in found]
    assert all(alone[-(most // 2) :])
    assert all(alone) == (len(records) <= most)


def test_nights_with_a_problem_are_alone_however_old_they_are() -> None:
    found = entries_of(HISTORY["vit"], 40)
    assert [len(entry.records) for entry in found if entry.kind is VerdictKind.ERROR] == [1] * 4
    bert = entries_of(HISTORY["bert"], 40)
    assert [len(entry.records) for entry in bert if entry.kind is VerdictKind.FASTER] == [1] * 4


def test_nights_that_share_an_entry_are_alike() -> None:
    for job in HISTORY:
        for entry in entries_of(HISTORY[job], 40):
            assert len({record.verdict.kind for record in entry.records}) == 1
            assert len({record.segment for record in entry.records}) == 1
            assert not any(record.proposed for record in entry.records[:-1])


def test_an_entry_has_the_median_rate_and_the_largest_peak() -> None:
    entry = max(entries_of(HISTORY["gpt"], 40), key=lambda entry: len(entry.records))
    rates = sorted(record.accepted.rate_per_s for record in entry.records if record.accepted)
    assert len(rates) == len(entry.records) > 2
    assert entry.rate_per_s is not None
    assert rates[0] < entry.rate_per_s < rates[-1]
    assert entry.peak_bytes == max(record.accepted.peak_bytes for record in entry.records if record.accepted)


def test_a_history_of_nothing_but_changing_problems_still_fits() -> None:
    noise, kinds = random.Random(5), list(VerdictKind)
    one = HISTORY["gpt"][0]
    records = [
        one.model_copy(update={"id": str(number), "verdict": Verdict(kind=noise.choice(kinds), reason="x")})
        for number in range(1000)
    ]
    found = entries_of(records, 50)
    assert len(found) == 50
    assert nights(found) == records[-len(nights(found)) :]  # the oldest are left out, and the page says so
    same = [one.model_copy(update={"verdict": Verdict(kind=VerdictKind.ERROR, reason="x")}) for one in records]
    assert nights(entries_of(same, 50)) == same


def test_segments_are_numbered_and_say_what_changed() -> None:
    starts = [(entry.segment, entry.changes) for entry in entries_of(HISTORY["resnet50"], 40) if entry.changes]
    assert [number for number, _ in starts] == [2, 3, 4]
    assert starts[0][1] == ("torch: 2.13.0+cu130, was 2.12.1+cu128",)
    assert starts[1][1][0].startswith("plan: {")
    assert starts[2][1] == ("driver: 580.65.06, was 570.86.15",)


def test_a_night_without_a_segment_belongs_to_the_one_before() -> None:
    first, second, third = HISTORY["gpt"][:3]
    failed = second.model_copy(update={"segment": None, "environment": None, "accepted": None})
    found = entries_of([first, failed, third], 10)
    assert [(entry.segment, entry.changes) for entry in found] == [(1, ())] * 3
    assert [entry.segment for entry in entries_of([failed, first], 10)] == [1, 1]


@pytest.mark.parametrize(
    "names", [("x", "y", "z"), ("2026-11-25T01:00:00+00:00",) * 3, ("", "2020-01-01", "1999-01-01")]
)
def test_times_that_are_missing_or_out_of_order_are_corrected(names: tuple[str, ...]) -> None:
    records = [
        one.model_copy(update={"night": name, "at": ""}) for one, name in zip(HISTORY["gpt"], names, strict=False)
    ]
    times = [entry.at for entry in entries_of(records, 10)]
    assert len(set(times)) == 3
    assert times == sorted(times)


def test_a_regression_of_memory_is_told_from_one_of_throughput() -> None:
    unet, gpt = (entries_of(HISTORY[job], 400)[-1] for job in ("unet", "gpt"))
    assert (unet.memory_regressed, unet.slower) == (True, False)
    assert (gpt.memory_regressed, gpt.slower) == (False, True)
    assert not entries_of(HISTORY["bert"], 400)[-1].memory_regressed


def test_a_verdict_that_says_what_moved_is_believed_also_inside_the_band() -> None:
    last = HISTORY["bert"][-1]
    for moved, expected in ((("slower",), (False, True)), (("more memory",), (True, False))):
        verdict = last.verdict.model_copy(update={"kind": VerdictKind.REGRESSION, "moved": moved})
        (entry,) = entries_of([last.model_copy(update={"verdict": verdict})], 1)
        assert (entry.memory_regressed, entry.slower) == expected


def test_rates_in_another_unit_or_without_a_number_are_left_out() -> None:
    one, two = HISTORY["gpt"][-2:]
    assert two.accepted is not None
    other = one.model_copy(update={"unit": "samples"})
    assert TrendEntry((other, two), entries_of([two], 1)[0].at, 1).rates_per_s == (two.accepted.rate_per_s,)
    endless = two.accepted.model_copy(update={"rates_per_s": (float("inf"),)})
    assert TrendEntry((two.model_copy(update={"accepted": endless}),), entries_of([two], 1)[0].at, 1).rate_per_s is None


def test_a_band_needs_both_ends_and_a_throughput() -> None:
    assert entries_of(HISTORY["gpt"], 400)[-1].band is not None
    assert entries_of(HISTORY["gpt"], 400)[0].band is None
    assert entries_of(HISTORY["vit"], 400)[-1].band is None
