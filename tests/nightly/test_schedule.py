"""The order of a night, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from autofit.core.errors import UsageError
from autofit.nightly.history import History, Scheduled, age, order_document, order_table, scheduled, selected
from autofit.nightly.jobs import FOLDER, Job, JobsFile
from autofit.nightly.records import NightRecord, Verdict, VerdictKind
from tests.nightly.nights import MachineRoom

NOW = datetime(2026, 11, 25, 1, tzinfo=UTC)


def job(name: str, folder: Path = Path("/nowhere")) -> Job:
    data = {"name": name, "workload": "train.py", "plan": f"{name}.yaml"}
    return Job.model_validate(data, context={FOLDER: folder})


def night(name: str, hours_ago: float, kind: VerdictKind = VerdictKind.STEADY, night: str = "n") -> NightRecord:
    at = (NOW - timedelta(hours=hours_ago)).isoformat()
    return NightRecord(id="i", job=name, night=night, at=at, verdict=Verdict(kind=kind, reason="why"))


@dataclass
class Past:
    """Records of jobs, as a history has them."""

    records: dict[str, tuple[NightRecord, ...]]
    unfinished: str | None = None

    def of_job(self, name: str) -> tuple[NightRecord, ...]:
        return self.records.get(name, ())

    def unfinished_night(self) -> str | None:
        return self.unfinished


def order_of(
    jobs: list[Job],
    records: dict[str, tuple[NightRecord, ...]],
    unfinished: str | None = None,
    only: Sequence[str] = (),
) -> list[Scheduled]:
    file = JobsFile(path=Path("/nowhere/jobs.yaml"), history=":memory:", jobs=tuple(jobs))
    return scheduled(file, cast(History, Past(records, unfinished)), NOW, only)


def test_never_checked_comes_first_then_the_longest_unchecked() -> None:
    jobs = [job("a"), job("b"), job("c"), job("d")]
    past = {"a": (night("a", 80), night("a", 2)), "b": (night("b", 70),), "d": ()}
    order = order_of(jobs, past)
    assert [each.job.name for each in order] == ["c", "d", "b", "a"]
    assert [each.why for each in order] == [
        "never checked: first tuning, since it has no plan",
        "never checked: first tuning, since it has no plan",
        "last checked 3 days ago (steady): first tuning, since it has no plan",
        "last checked 2 h 0 min ago (steady): first tuning, since it has no plan",
    ]


def test_a_job_with_a_plan_is_re_checked(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    (found,) = order_of([job("a", tmp_path)], {})
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
    (found,) = order_of([job("a")], {"a": (record,)}, "tonight")
    assert (found.done is not None) is done
    (fresh,) = order_of([job("a")], {"a": (record,)})
    assert not fresh.done
    (alone,) = order_of([job("a"), job("b")], {"a": (record,)}, "tonight", ["a"])
    assert not alone.done


def test_jobs_are_chosen_by_name_in_the_order_of_the_file() -> None:
    jobs = [job("gpt"), job("bert"), job("mlp")]
    assert [each.name for each in selected(jobs, [])] == ["gpt", "bert", "mlp"]
    assert [each.name for each in selected(jobs, ["mlp", "gpt"])] == ["gpt", "mlp"]
    with pytest.raises(UsageError, match=r"found no job 'brt' in the jobs file\. Did you mean 'bert'\?"):
        selected(jobs, ["brt"])
    with pytest.raises(UsageError, match="Expected one of gpt, bert, mlp"):
        selected(jobs, ["x"])


def test_ages_are_in_words_and_a_clock_that_went_back_is_no_negative_age() -> None:
    assert age((NOW - timedelta(minutes=20)).isoformat(), NOW) == "20 min 0 s ago"
    assert age((NOW - timedelta(hours=47)).isoformat(), NOW) == "47 h 0 min ago"
    assert age((NOW - timedelta(days=9)).isoformat(), NOW) == "9 days ago"
    assert age((NOW + timedelta(days=9)).isoformat(), NOW) == "0 ms ago"
    assert age("2026-11-25T00:59:00", NOW) == "1 min 0 s ago"  # without a time zone it is UTC
    assert age("yesterday", NOW) == "at an unknown time"


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    room = MachineRoom(tmp_path)
    room.add("gpt")
    room.night()
    room.add("bert", accepted=None)
    return room


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table_has_the_order_with_the_last_verdict_and_the_reason(room: MachineRoom) -> None:
    now = room.today() + timedelta(days=3)
    order = scheduled(room.file, room.history, now)
    assert words(order_table(order, 100)) == [
        "order why",
        "bert never checked: first tuning, since it has no plan",
        "gpt last checked 3 days ago (cannot compare): re-check of the accepted plan",
    ]


def test_the_document_has_it_too(room: MachineRoom) -> None:
    now = room.today()
    found = order_document(scheduled(room.file, room.history, now), ["jobs.yaml, line 3: .."], now)
    assert [job["name"] for job in found["jobs"]] == ["bert", "gpt"]
    gpt = found["jobs"][1]
    assert (gpt["verdict"], gpt["nights"], gpt["has_plan"]) == ("cannot compare", 1, True)
    assert gpt["checked_at"] == room.records("gpt")[0].at
    assert found["problems"] == ["jobs.yaml, line 3: .."]
