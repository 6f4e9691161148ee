"""A study is read without changing a byte of it."""

import hashlib
import os
import shutil
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autofit.core.errors import StudyError
from autofit.core.outcome import DIED, Status
from autofit.core.trial import Purpose
from autofit.search.evidence import CLOSED, SearchResult, evidence_in
from autofit.study import Study
from autofit.study.stored_trials import STUDY_SCHEMA
from autofit.study.study import ReadStudy, read_studies
from tests.recorded import RecordedBench, recorded_search, table
from tests.study.samples import in_optuna, rewrite, storage_at


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SearchResult]:
    path = tmp_path_factory.mktemp("study") / "study.journal"
    return path, recorded_search(path)


def only(path: Path) -> ReadStudy:
    (study,) = read_studies(path)
    return study


def test_trials_and_notes_are_those_that_the_search_wrote(kept: tuple[Path, SearchResult]) -> None:
    path, result = kept
    found = only(path)
    limit_bytes = result.evidence.budget.memory_bytes
    assert tuple(each.under(limit_bytes, earlier=False) for each in found.trials) == result.trials
    assert evidence_in(found.notes, CLOSED) == result.evidence
    assert all(each.start.environment == table("resnet").environment for each in found.trials)
    assert found.unreadable == 0


def test_reading_changes_nothing_even_where_nothing_may_be_written(kept: tuple[Path, SearchResult]) -> None:
    path, _ = kept
    before, when = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns
    path.chmod(0o400)
    only(path)
    path.chmod(0o600)
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == (before, when)
    assert os.listdir(path.parent) == [path.name]


def test_a_trial_whose_process_died_is_shown_as_crashed_and_stays_running(tmp_path: Path) -> None:
    path, briefing = tmp_path / "study.journal", RecordedBench(table("resnet")).briefing
    result = recorded_search(path)
    study = Study(
        path,
        name=only(path).name,
        environment=briefing.environment,
        space=briefing.space,
        objective=result.evidence.objective,
        memory_bytes=briefing.budget.memory_bytes,
    )
    study.begin(briefing.space.baseline, Purpose.PROBE)
    assert len(only(path).trials) == len(result.trials)  # its process is alive
    rewrite(path, f'\\"pid\\":{os.getpid()},\\"process_start\\":', '\\"pid\\":4194999,\\"process_start\\":')
    assert len(only(path).trials) == 1 + sum(each.outcome is not None for each in only(path).trials[:-1])
    last = only(path).trials[-1]
    assert last.outcome is not None
    assert (last.outcome.status, last.outcome.reason) == (Status.CRASHED, DIED)
    assert [trial.state for trial in in_optuna(path, only(path).name)].count(TrialState.RUNNING) == 1


def test_dropped_trials_are_left_out(tmp_path: Path) -> None:
    path, briefing = tmp_path / "study.journal", RecordedBench(table("resnet")).briefing
    objective = recorded_search(path).evidence.objective
    study = Study(
        path,
        name=only(path).name,
        environment=briefing.environment,
        space=briefing.space,
        objective=objective,
        memory_bytes=briefing.budget.memory_bytes,
    )
    study.drop("contradicted")
    assert only(path).trials == ()


def test_what_is_not_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"absent.journal cannot be shown: found no file, or an empty one"):
        read_studies(tmp_path / "absent.journal")
    (tmp_path / "text.journal").write_text("not a journal at all")
    with pytest.raises(StudyError, match="found a file of another kind"):
        read_studies(tmp_path / "text.journal")
    optuna.create_study(storage=storage_at(tmp_path / "other.journal"), study_name="other")
    with pytest.raises(StudyError, match="found 1 studies, none made by this version"):
        read_studies(tmp_path / "other.journal")


def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.journal")
    for path in (tmp_path / "pipe.journal", "/dev/zero"):
        with pytest.raises(StudyError, match="found a special file"):
            read_studies(path)


@pytest.mark.fault("F58")
def test_a_study_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    recorded_search(path)
    rewrite(path, STUDY_SCHEMA, "autofit.study/2")
    with pytest.raises(StudyError, match=r"found 1 studies, none made by this version; expected .* autofit\.study/1"):
        read_studies(path)


def test_a_database_that_is_away_is_an_error_without_its_password() -> None:
    with pytest.raises(StudyError) as error:
        read_studies("postgresql+nosuchdriver://me:hunter2@localhost:1/db")
    assert "hunter2" not in str(error.value)


def test_a_damaged_record_is_counted_and_the_others_are_read(kept: tuple[Path, SearchResult], tmp_path: Path) -> None:
    path = Path(shutil.copy(kept[0], tmp_path / "s.journal"))
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = next(at for at, line in enumerate(lines) if b'"autofit.outcome":"' in line)
    lines[damaged] = lines[damaged].replace(b'"autofit.outcome":"{', b'"autofit.outcome":"[')
    path.write_bytes(b"".join(lines))
    found = only(path)
    assert (found.unreadable, len(found.trials)) == (1, len(kept[1].trials) - 1)
