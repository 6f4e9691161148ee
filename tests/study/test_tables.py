"""Tables are read without Optuna and without changing what is there."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from autofit.core.trial import Purpose
from autofit.study.location import Place
from autofit.study.tables import opened
from tests.study.samples import PLAN, measured, reopen


def filled(path: Path) -> Path:
    study = reopen(path)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    return path


def hot_journal(path: Path, folder: Path) -> Path:
    """Returns a copy of a database as a process that is killed in the middle of a transaction leaves it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma cache_size = 1")  # so that changed pages reach the file before the commit
        connection.execute("begin immediate")
        connection.execute("create table junk (x)")
        connection.executemany("insert into junk values (?)", [("x" * 4000,) for _ in range(40)])
        copy = Path(shutil.copy(path, folder / "killed.db"))
        shutil.copy(f"{path}-journal", f"{copy}-journal")
        connection.execute("rollback")
    return copy


@pytest.mark.parametrize("prefix", ["", "sqlite+pysqlite:///"])
def test_studies_and_trials_are_read_with_their_attributes(db: Path, prefix: str) -> None:
    filled(db)
    with opened(Place.of(f"{prefix}{db}")) as tables:
        ((number, name),) = tables.select("select * from studies where study_name = :name", name="net")
        attributes = tables.attributes_of_study(number)
        ((trial, state, values),) = tables.trials(number)
    assert (name, attributes["autofit.schema"]) == ("net", "autofit.study/1")
    assert (trial, state, values["status"]) == (0, "COMPLETE", "measured")


def test_what_a_killed_process_left_half_written_is_rolled_back(db: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    path = hot_journal(filled(db), folder)
    with opened(Place.of(path)) as tables:
        assert len(tables.trials(1)) == 1
        assert tables.select("select name from sqlite_master where name = 'junk'") == []
    assert [each.name for each in folder.iterdir()] == ["killed.db"]


def test_a_file_cannot_be_changed_through_its_tables(db: Path) -> None:
    before = db.read_bytes()
    with opened(Place.of(db)) as tables, pytest.raises(sqlite3.OperationalError, match="readonly"):
        tables.select("delete from studies")
    assert db.read_bytes() == before


def test_what_cannot_be_read_is_the_error_of_its_kind(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database at all")
    for location, kind in ((None, FileNotFoundError), (tmp_path / "absent.db", FileNotFoundError)):
        with pytest.raises(kind), opened(Place.of(location)):
            pass
    with pytest.raises(ValueError, match="not an SQLite file"), opened(Place.of(tmp_path / "text.db")):
        pass
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.parametrize("value", ["'{'", "cast(x'ff' as text)", "''"])
def test_a_damaged_value_costs_itself(db: Path, value: str) -> None:
    filled(db)
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(f"update trial_user_attributes set value_json = {value} where key = 'status'")
    with opened(Place.of(db)) as tables:
        ((_, _, values),) = tables.trials(1)
    assert "status" not in values
    assert values["purpose"] == "probe"


def test_a_file_is_read_without_optuna_and_sqlalchemy(db: Path) -> None:
    code = (
        "import sys; from autofit.study.tables import opened; from autofit.study.location import Place\n"
        "with opened(Place.of(sys.argv[1])) as tables: print(len(tables.select('select * from studies')))\n"
        "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(db)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["1", "[]"]
