"""The tables of an Optuna storage, read without Optuna. Nothing is created, upgraded or repaired.

An SQLite file is opened read-only. Columns go by their place, since `key` is a reserved word in MySQL.
"""

import errno
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from autofit.study import silence
from autofit.study.location import Place
from autofit.study.time_limits import connect_args

SQLITE_HEAD = b"SQLite format 3\0"
"""First bytes of every SQLite file (https://www.sqlite.org/fileformat.html)."""
_WAIT_S = 10.0
"""Maximum time to wait for a process that is writing to an SQLite file."""

Run: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Runs a query with its values, and returns the rows."""
TrialRow: TypeAlias = tuple[int, str, dict[str, Any]]
"""Number, state and attributes of a trial."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a storage that is open.

    Attributes:
        run: runs a query with its values.
        names: names of all tables.
    """

    run: Run
    names: frozenset[str]

    def select(self, query: str, **values: Any) -> Sequence[Sequence[Any]]:
        """Returns the rows of a query, in which `:name` stands for a value."""
        return self.run(query, values)

    def attributes_of_study(self, number: int) -> dict[str, Any]:
        """Returns the attributes of the study with this number, without damaged ones."""
        rows = self.select("select * from study_user_attributes where study_id = :study", study=number)
        return _decoded(rows)[number]

    def trials(self, number: int) -> list[TrialRow]:
        """Returns the trials of the study with this number, without damaged attributes."""
        of_study = "join trials t on a.trial_id = t.trial_id where t.study_id = :study"
        attributes = _decoded(self.select(f"select a.* from trial_user_attributes a {of_study}", study=number))
        rows = self.select(
            "select trial_id, number, state from trials where study_id = :study order by number", study=number
        )
        return [(place, str(state), attributes[key]) for key, place, state in rows]


def _decoded(rows: Sequence[Sequence[Any]]) -> defaultdict[int, dict[str, Any]]:
    """Returns the attributes of each owner from rows of number, owner, key and value. Damaged ones are left out."""
    found = defaultdict[int, dict[str, Any]](dict)
    for _, owner, key, value in rows:
        with suppress(ValueError):
            found[owner][key] = json.loads(value)
    return found


@contextmanager
def opened(place: Place) -> Iterator[Tables]:
    """Opens a storage for reading.

    Raises:
        OSError, sqlite3.Error, ValueError: an SQLite file that is missing, cannot be read, or is not one.
        SQLAlchemyError, ImportError: a database that cannot be reached, or whose driver is not installed.
    """
    if place.url is not None:
        with _database(place.url) as tables:
            yield tables
        return
    if place.path is None:
        raise FileNotFoundError(errno.ENOENT, "nothing: what is in memory ends with its process")
    with place.path.open("rb") as file:
        if file.read(len(SQLITE_HEAD)) != SQLITE_HEAD:
            raise ValueError("not an SQLite file")
    with closing(_read_only(place.path)) as connection:
        names = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
        yield Tables(
            lambda query, values: connection.execute(query, values).fetchall(), frozenset(name for (name,) in names)
        )


def _read_only(path: Path) -> sqlite3.Connection:
    """Opens an SQLite file read-only. What a killed process left half-written is rolled back first."""
    connection = _connection(path, "ro")
    try:
        connection.execute("pragma schema_version")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        with closing(_connection(path, "rw")) as writable:
            writable.execute("pragma schema_version")
        connection = _connection(path, "ro")
    return connection


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode={mode}", uri=True, timeout=_WAIT_S)
    connection.text_factory = lambda text: text.decode(errors="replace")  # a damaged text costs itself, not the query
    return connection


@contextmanager
def _database(url: str) -> Iterator[Tables]:
    """Opens a database by its URL. No connection stays open afterwards."""
    import sqlalchemy as sql  # noqa: PLC0415  # takes longer than to read an SQLite file

    engine = sql.create_engine(url, poolclass=sql.NullPool, connect_args=connect_args(sql.make_url(url)))
    silence.watch(engine)
    with engine.connect() as connection:
        names = frozenset(sql.inspect(connection).get_table_names())
        yield Tables(lambda query, values: connection.execute(sql.text(query), dict(values)).fetchall(), names)
