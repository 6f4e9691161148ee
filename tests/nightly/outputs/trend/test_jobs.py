"""The order of the jobs, and how much of each is shown."""

from autofit.nightly.outputs.trend.jobs import LEAST, MOST, MOST_ENTRIES, trends
from autofit.nightly.result import NightResult
from tests.nightly import samples

HISTORY = samples.year()
NIGHT = samples.result(HISTORY)


def test_the_newest_verdicts_come_first_and_among_them_the_problems() -> None:
    found = trends(NIGHT, HISTORY)
    assert [one.name for one in found][:7] == ["gpt", "unet", "t5", "vit", "whisper", "clip", "bert"]
    assert found[-1].name == "llama"
    assert [one.tonight for one in found] == [True] * 19 + [False]
    assert found[-1].unchecked == "the night's time of 2 h was over"
    assert len({one.anchor for one in found}) == 20


def test_a_job_that_was_never_checked_comes_last_without_records() -> None:
    found = trends(NIGHT.model_copy(update={"unchecked": {"new": "busy"}}), HISTORY)
    assert (found[-1].name, found[-1].records, found[-1].entries, found[-1].unchecked) == ("new", (), [], "busy")


def test_a_night_that_the_history_does_not_hold_yet_is_shown() -> None:
    shorter = {job: records[:-1] for job, records in HISTORY.items()}
    assert trends(NIGHT, shorter)[0].last == HISTORY["gpt"][-1]


def test_few_jobs_are_shown_whole_and_many_are_thinned() -> None:
    few = {name: HISTORY[name] for name in ("gpt", "unet", "t5")}
    for history, most in ((few, MOST), (HISTORY, MOST_ENTRIES // 20)):
        for one in trends(NightResult(night=NIGHT.night), history):
            assert len(one.entries) <= most
            assert one.left_out == 0
            assert (one.shared is None) == (len(one.records) <= most)
    many = {f"{name} {number}": HISTORY[name] for name in HISTORY for number in range(5)}
    assert max(len(one.entries) for one in trends(NightResult(night=NIGHT.night), many)) <= LEAST


def test_a_history_with_names_of_nights_that_are_no_times_is_shown() -> None:
    odd = [one.model_copy(update={"night": "?"}) for one in HISTORY["gpt"][-3:]]
    found = trends(NIGHT, {**HISTORY, "odd": odd})
    assert [one.name for one in found][-1] == "odd"
