"""A study is read without Optuna and without changing a byte of it."""

import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from autofit.core.errors import StudyError
from autofit.core.outcome import DIED, Status
from autofit.core.trial import Purpose
from autofit.search.evidence import CLOSED, SearchResult, evidence_in
from autofit.study import Study
from autofit.study.reading import ReadStudy, read_studies
from autofit.study.stored import SCHEMA
from tests.recorded import RecordedBench, recorded_search, table


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SearchResult]:
    path = tmp_path_factory.mktemp("study") / "study.db"
    return path, recorded_search(path)


def only(path: Path) -> ReadStudy:
    (study,) = read_studies(path)
    return study


def test_trials_and_notes_are_those_that_the_search_wrote(kept: tuple[Path, SearchResult]) -> None:
    path, result = kept
    found = only(path)
    assert tuple(each.trial for each in found.trials) == result.trials
    assert evidence_in(found.notes, CLOSED) == result.evidence
    assert all(each.environment == table("resnet").environment for each in found.trials)
    assert found.unreadable == 0


def test_reading_changes_nothing_even_where_nothing_may_be_written(kept: tuple[Path, SearchResult]) -> None:
    path, _ = kept
    before, when = hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns
    path.chmod(0o400)
    only(path)
    path.chmod(0o600)
    assert (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns) == (before, when)
    assert os.listdir(path.parent) == [path.name]


def test_a_sqlite_url_and_a_database_url_read_the_same(kept: tuple[Path, SearchResult]) -> None:
    path, _ = kept
    assert read_studies(f"sqlite:///{path}") == [only(path)]
    assert read_studies(f"sqlite+pysqlite:///{path}") == [only(path)]  # by SQLAlchemy, as any database


def test_optuna_and_torch_are_not_loaded(kept: tuple[Path, SearchResult]) -> None:
    code = (
        "import sys; from autofit.study.reading import read_studies; print(len(read_studies(sys.argv[1])[0].trials));"
    )
    code += "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code, str(kept[0])], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == [str(len(kept[1].trials)), "[]"]


def test_a_trial_whose_process_died_is_shown_as_crashed_and_stays_running(tmp_path: Path) -> None:
    path, briefing = tmp_path / "study.db", RecordedBench(table("resnet")).briefing
    result = recorded_search(path)
    study = Study.open(
        path,
        name=only(path).name,
        environment=briefing.environment,
        space=briefing.space,
        objective=result.evidence.objective,
        memory_bytes=briefing.budget.memory_bytes,
    )
    study.begin(briefing.space.baseline, Purpose.PROBE)
    assert len(only(path).trials) == len(result.trials)  # its process is alive
    with closing(sqlite3.connect(path)) as connection, connection:
        key, text = connection.execute(
            "select trial_user_attribute_id, value_json from trial_user_attributes where key = 'autofit.request' "
            "order by trial_id desc limit 1"
        ).fetchone()
        changed = text.replace(f'\\"pid\\":{os.getpid()}', '\\"pid\\":4194999')
        assert changed != text
        connection.execute(
            "update trial_user_attributes set value_json = ? where trial_user_attribute_id = ?", (changed, key)
        )
        connection.execute("delete from trial_user_attributes where key = 'autofit.request.sum'")
    last = only(path).trials[-1].trial
    assert (last.outcome.status, last.outcome.reason) == (Status.CRASHED, DIED)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("select count(*) from trials where state = 'RUNNING'").fetchone() == (1,)


def test_dropped_trials_are_left_out(tmp_path: Path) -> None:
    path, briefing = tmp_path / "study.db", RecordedBench(table("resnet")).briefing
    objective = recorded_search(path).evidence.objective
    study = Study.open(
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
    with pytest.raises(StudyError, match=r"absent.db cannot be read: found No such file"):
        read_studies(tmp_path / "absent.db")
    (tmp_path / "text.db").write_text("not a database at all")
    with pytest.raises(StudyError, match="found not an SQLite file"):
        read_studies(tmp_path / "text.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("create table something (x)")
    with pytest.raises(StudyError, match="no such table: studies"):
        read_studies(tmp_path / "other.db")


def test_a_study_of_another_version_or_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    recorded_search(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"update study_user_attributes set value_json = '\"autofit.study/2\"' where key = '{SCHEMA}'"
        )
    with pytest.raises(StudyError, match=r"found studies of the schema autofit.study/2; expected autofit.study/1"):
        read_studies(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"delete from study_user_attributes where key = '{SCHEMA}'")
    with pytest.raises(StudyError, match="found 1 studies, none made by autofit"):
        read_studies(path)


def test_a_database_that_is_away_is_an_error_without_its_password() -> None:
    with pytest.raises(StudyError) as error:
        read_studies("postgresql+nosuchdriver://me:hunter2@localhost:1/db")
    assert "hunter2" not in str(error.value)


def test_a_continued_study_belongs_to_its_family() -> None:
    assert [ReadStudy(name, {}, ()).family for name in ("a-samples", "a-samples#12")] == ["a-samples"] * 2


@pytest.mark.parametrize("value", ["'{'", "cast(x'ff' as text)", "replace(value_json, '1', '2')"])
def test_a_damaged_record_is_counted_and_the_others_are_read(
    kept: tuple[Path, SearchResult], tmp_path: Path, value: str
) -> None:
    path = Path(shutil.copy(kept[0], tmp_path / "s.db"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            f"update trial_user_attributes set value_json = {value} where key = 'autofit.outcome' and trial_id = 2"
        )
    found = only(path)
    assert (found.unreadable, len(found.trials)) == (1, len(kept[1].trials) - 1)
