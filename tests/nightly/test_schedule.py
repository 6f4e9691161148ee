"""The order of a night: what was not checked for longest comes first, and what a killed night has done is not repeated."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autofit.core.errors import UsageError
from autofit.nightly.job import FOLDER, Job
from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from autofit.nightly.schedule import age, moment, scheduled, selected

NOW = datetime(2026, 11, 25, 1, tzinfo=UTC)


def job(name: str, folder: Path = Path("/nowhere")) -> Job:
    data = {"name": name, "workload": "train.py", "plan": f"{name}.yaml"}
    return Job.model_validate(data, context={FOLDER: folder})


def night(name: str, hours_ago: float, kind: VerdictKind = VerdictKind.STEADY, night: str = "n") -> NightRecord:
    at = (NOW - timedelta(hours=hours_ago)).isoformat()
    return NightRecord(id="i", job=name, night=night, at=at, verdict=Verdict(kind=kind, reason="why"))


def test_never_checked_comes_first_then_the_longest_unchecked() -> None:
    jobs = [job("a"), job("b"), job("c"), job("d")]
    past = {"a": (night("a", 80), night("a", 2)), "b": (night("b", 70),), "d": ()}
    order = scheduled(jobs, past, NOW)
    assert [each.job.name for each in order] == ["c", "d", "b", "a"]
    assert [each.why for each in order] == [
        "never checked: first tuning, since it has no plan",
        "never checked: first tuning, since it has no plan",
        "last checked 3 days ago (steady): first tuning, since it has no plan",
        "last checked 2 h 0 min ago (steady): first tuning, since it has no plan",
    ]


def test_a_job_with_a_plan_is_re_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    (found,) = scheduled([job("a", tmp_path)], {}, NOW)
    assert found.why == "never checked: re-check of the accepted plan"


@pytest.mark.parametrize(
    ("record", "done"),
    [
        (night("a", 1, night="tonight"), True),
        (night("a", 1, VerdictKind.REGRESSION, "tonight"), True),
        (night("a", 1, VerdictKind.ERROR, "tonight"), False),  # it may be mended by now
        (night("a", 25, night="yesterday"), False),
    ],
)
def test_a_continued_night_leaves_out_what_it_has_checked(record: NightRecord, done: bool) -> None:
    (found,) = scheduled([job("a")], {"a": (record,)}, NOW, "tonight")
    assert found.done is done
    (fresh,) = scheduled([job("a")], {"a": (record,)}, NOW)
    assert not fresh.done


def test_jobs_are_chosen_by_name_in_the_order_of_the_file() -> None:
    jobs = [job("gpt"), job("bert"), job("mlp")]
    assert [each.name for each in selected(jobs, [])] == ["gpt", "bert", "mlp"]
    assert [each.name for each in selected(jobs, ["mlp", "gpt"])] == ["gpt", "mlp"]
    with pytest.raises(UsageError, match="found no job 'brt' in the jobs file. Did you mean 'bert'?"):
        selected(jobs, ["brt"])
    with pytest.raises(UsageError, match="Expected one of gpt, bert, mlp"):
        selected(jobs, ["x"])


def test_ages_are_in_words_and_a_clock_that_went_back_is_no_negative_age() -> None:
    assert age((NOW - timedelta(minutes=20)).isoformat(), NOW) == "20 min 0 s ago"
    assert age((NOW - timedelta(hours=47)).isoformat(), NOW) == "47 h 0 min ago"
    assert age((NOW - timedelta(days=9)).isoformat(), NOW) == "9 days ago"
    assert age((NOW + timedelta(days=9)).isoformat(), NOW) == "0 ms ago"
    assert moment("2026-11-25T01:00:00") == NOW
