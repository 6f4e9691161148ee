"""Facts of a night: sentences that count, an order that puts problems first, and figures beside expectations."""

import pytest

from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio
from autofit.nightly.outputs.facts import (
    by_urgency,
    change,
    day,
    device,
    evidence,
    headline,
    merged,
    moment,
    other_counts,
    peak,
    plan_words,
    rate,
    readable,
    since,
    verdict_counts,
)
from autofit.nightly.records import NightRecord, VerdictKind
from autofit.nightly.result import NightResult
from tests.nightly import samples

YEAR = samples.result(samples.year())
BY_NAME = {record.job: record for record in YEAR.records}


def night(*names: str, problems: int = 0, unchecked: int = 0) -> NightResult:
    """Returns a night over some of the jobs."""
    return NightResult(
        night=YEAR.night,
        records=tuple(BY_NAME[name] for name in names),
        problems=("x",) * problems,
        unchecked={f"job {number}": "busy" for number in range(unchecked)},
    )


@pytest.mark.parametrize(
    ("given", "first", "rest"),
    [
        (night("gpt", "unet", "vit", "bert"), "3 of 4 jobs need attention: 2 regressions, 1 failed.", "1 steady"),
        (night("t5", "bert"), "1 of 2 jobs needs attention: 1 does not fit.", "1 steady"),
        (night("gpt"), "The job needs attention: 1 regression.", ""),
        (night("gpt", problems=2), "The job needs attention: 1 regression, 2 errors in the jobs file.", ""),
        (night("clip", "bert", unchecked=1), "None of 3 jobs needs attention.", "1 faster, 1 steady, 1 not checked"),
        (night("bert", problems=1), "The job needs no attention; 1 error in the jobs file.", "1 steady"),
        (night(), "No job was checked.", ""),
        (night(unchecked=2), "No job was checked.", "2 not checked"),
        (night("whisper"), "The job needs no attention.", "1 cannot be compared"),
    ],
)  # fmt: skip
def test_the_headline_says_what_needs_attention_and_the_rest_is_counted(
    given: NightResult, first: str, rest: str
) -> None:
    assert (headline(given), other_counts(given)) == (first, rest)


def test_problems_come_first_and_otherwise_the_order_is_kept() -> None:
    names = [record.job for record in by_urgency(YEAR.records)]
    assert names[:7] == ["gpt", "unet", "t5", "vit", "whisper", "clip", "bert"]
    assert verdict_counts(YEAR.records, {VerdictKind.FASTER}) == "1 faster"


def test_times_are_in_utc_and_other_texts_as_given() -> None:
    assert (moment("2026-11-25T02:30:00+01:30"), day("2026-11-25T02:30:00")) == ("2026-11-25 01:00 UTC", "2026-11-25")
    assert (moment("tonight"), day("tonight")) == ("tonight", "tonight")


def test_a_night_is_merged_once_into_its_history() -> None:
    history = samples.year()
    assert merged(YEAR, history) == history
    shorter = {job: records[:-1] for job, records in history.items() if job != "whisper"}
    found = merged(YEAR, shorter)
    assert found["gpt"] == history["gpt"]
    assert found["whisper"] == (BY_NAME["whisper"],)
    assert merged(NightResult(night="x"), {"new": ()}) == {}


def test_how_long_a_verdict_has_lasted() -> None:
    history = samples.year()
    assert since(history["gpt"]) == (YEAR.night, 1)
    first, nights = since(history["unet"])
    assert (day(first), nights) == ("2026-11-03", 23)
    assert since(history["whisper"])[1] == 4


def test_figures_are_beside_what_was_expected() -> None:
    gpt = BY_NAME["gpt"]
    assert (rate(gpt), change(gpt), peak(gpt)) == ("46,670 tokens/s", "-5.9%", "14.87 GiB of 20 GiB")
    found = dict(evidence(gpt))
    assert found["throughput"] == "46,670 tokens/s; expected 48,630 to 50,610 by 14 nights"
    assert found["measured again"] == "46,580 tokens/s"
    assert found["peak memory"] == "14.87 GiB of 20 GiB; expected at most 15.17 GiB"
    assert found["over the baseline"] == "1.92x (1.90 to 1.94)"
    assert found["accepted plan"] == "micro batch 32 x 8 accumulation steps = 256, precision=bf16"
    assert found["device"] == device(gpt)
    vit = BY_NAME["vit"]
    assert (rate(vit), change(vit), peak(vit), list(dict(evidence(vit)))) == ("", "", "", ["device"])


def test_a_proposal_says_what_it_gains_and_whether_it_is_accepted() -> None:
    clip = BY_NAME["clip"].model_copy(update={"proposed_gain": Ratio(value=1.1, low=1.08, high=1.12, pairs=6)})
    words = "micro batch 64 x 4 accumulation steps = 256, precision=bf16, compile=default"
    words += ": 1.10x (1.08 to 1.12) of the accepted plan's throughput"
    assert dict(evidence(clip))["proposed plan"] == words
    assert dict(evidence(clip.model_copy(update={"replaced": True})))["new accepted plan"] == words


@pytest.mark.parametrize(
    "values", [{}, {"precision": "bf16"}, {"micro_batch_size": "many"}, {"micro_batch_size": True}]
)
def test_a_plan_without_a_batch_is_still_in_words(values: dict[str, bool | str]) -> None:
    plan = Plan(values=values)
    assert plan_words(plan, BY_NAME["gpt"]) == str(plan)


def test_keys_of_plans_are_readable_and_other_braces_are_kept() -> None:
    changed = 'plan: {"micro_batch_size":32,"precision":"bf16"}, was {}'
    assert readable(changed) == "plan: micro_batch_size=32 precision=bf16, was as it is"
    assert readable("driver: {x}, was {") == "driver: {x}, was {"


def test_a_record_without_anything_measured_has_no_evidence() -> None:
    failed: NightRecord = samples.failing()["gpt"][-1]
    assert evidence(failed) == []
