"""Records of trainings whose micro batches were split: where they are, who reads them, and that they are used once."""

from pathlib import Path
from typing import Any

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.search.request import Request
from autofit.search.search import search
from autofit.study import read_studies
from autofit.study.splits import TrainingSplits, forget, places, read, write
from tests.fakes import FakeBench, OpenedBench, briefing_of, small_bench

ENVIRONMENT = briefing_of(small_bench()).environment


def record(training: str = "a", count: int = 1, plan: Plan | None = None, **changes: Any) -> TrainingSplits:
    return TrainingSplits(
        training=training,
        plan=plan or Plan(values={"micro_batch_size": 8}),
        environment=ENVIRONMENT.model_copy(update=changes),
        micro_batches=count,
        largest_samples=8,
        first_at="2026-11-01T02:03:04+00:00",
        last_at="2026-11-01T03:03:04+00:00",
    )


def test_they_are_beside_the_study_or_else_beside_the_plan_file(tmp_path: Path) -> None:
    plan, study = tmp_path / "plan.yaml", tmp_path / "gone" / "study.journal"
    beside = tmp_path / "plan.splits.jsonl"
    assert places(study, plan) == [tmp_path / "gone" / "study.splits.jsonl", beside]
    assert places("postgresql://host/db", plan) == places("memory", plan) == places("", plan) == [beside]
    assert places("//server/share/study.journal", plan) == [beside]
    assert places("memory") == []
    assert write(places(study, plan), record()) == ""
    assert beside.exists()
    assert "no study and no plan file" in write(places(study), record())
    study.parent.mkdir()
    assert write(places(study, plan), record("b")) == ""
    assert [each.training for each in read(places(study, plan), ENVIRONMENT)] == ["b", "a"]


def test_the_last_record_of_each_training_counts_where_it_can_be_compared(tmp_path: Path) -> None:
    files = places(tmp_path / "study.journal")
    for each in (record("a", 1), record("b", 1), record("a", 2), record("c", 1, workload="another")):
        write(files, each)
    with files[0].open("a", encoding="utf-8") as file:
        file.write('not a record\n{"training": "torn')
    found = read(files, ENVIRONMENT)
    assert [(each.training, each.micro_batches) for each in found] == [("a", 2), ("b", 1)]
    assert "2 of its micro batches of up to 8 samples were split, the first at 2026-11-01" in found[0].words
    forget(files, found)
    assert read(files, ENVIRONMENT) == []
    other = ENVIRONMENT.model_copy(update={"workload": "another"})
    assert [each.training for each in read(files, other)] == ["c"]
    forget(files, read(files, other))
    assert not files[0].exists()


def test_a_file_that_cannot_be_written_or_read_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "study.splits.jsonl").mkdir()
    files = places(tmp_path / "study.journal")
    assert "was not written" in write(files, record())
    assert read(files, ENVIRONMENT) == []


def bench_of(fake: FakeBench, ran: list[Plan]) -> OpenedBench:
    def run(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        ran.append(plan)
        return fake.evaluate(plan, purpose)

    return OpenedBench(briefing_of(fake), run)


def test_the_next_search_leaves_the_plan_out_and_says_so(tmp_path: Path) -> None:
    ran, study = list[Plan](), tmp_path / "study.journal"
    request = Request(study=study, max_trials=25)
    first = search(bench_of(small_bench(), ran), request)
    assert first.plan != first.baseline.plan
    write(places(first.study), record(plan=first.plan))
    ran.clear()
    second = search(bench_of(small_bench(), ran), request)
    assert second.plan != first.plan
    assert first.plan not in ran
    assert any("a training with this plan ran out of memory: 1 of its micro batches" in each for each in second.caveats)
    assert read(places(first.study), ENVIRONMENT) == []
    (stored,) = read_studies(study)
    (trial,) = [each for each in stored.trials if each.start.plan == first.plan]
    assert trial.outcome is not None
    assert trial.outcome.status is Status.OUT_OF_MEMORY
    third = search(bench_of(small_bench(), ran), request)
    assert third.plan != first.plan, "it is kept in the study"


def test_a_baseline_that_ran_out_of_memory_in_a_training_is_not_the_answer(tmp_path: Path) -> None:
    ran, request = list[Plan](), Request(study=tmp_path / "study.journal", max_trials=25)
    first = search(bench_of(small_bench(), ran), request)
    baseline = first.baseline.plan
    write(places(first.study), record(plan=baseline))
    ran.clear()
    second = search(bench_of(small_bench(), ran), request)
    assert second.plan != baseline
    assert baseline not in ran
    assert second.baseline.outcome.status is Status.OUT_OF_MEMORY
