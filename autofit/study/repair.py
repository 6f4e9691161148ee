"""Repair: deletes damaged values from an SQLite study, so that a changed byte costs one record and not the study."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from optuna.distributions import json_to_distribution
from optuna.storages._rdb.models import TrialValueModel  # private; its tables are what optuna-dashboard reads
from optuna.trial import TrialState

_STATES = {state.name.encode() for state in TrialState}
_KINDS = {kind.name.encode() for kind in TrialValueModel.TrialValueType}
_Check = Callable[[Any], bool]


def heal(path: Path, wait_s: float) -> int:
    """Deletes unreadable values of the study at `path` in one transaction. Damaged trials are set to FAIL.

    Called when a study cannot be read. Other damage, such as to a database page, raises.

    Args:
        path: an SQLite file with Optuna's tables.
        wait_s: maximum time to wait for a lock held by another process.

    Returns:
        The number of deleted values.

    Raises:
        sqlite3.Error: the database itself is damaged, or locked.
    """
    uri = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=wait_s)) as connection, connection:
        connection.text_factory = bytes  # so that text that is not valid UTF-8 can be read
        lost = int(connection.execute("pragma integrity_check(1)").fetchone()[0] != b"ok")
        if lost:
            connection.execute("reindex")  # rebuilds a damaged index from its table
        lost += _delete(connection, "trial_user_attributes", {"key": _text, "value_json": _json})
        lost += _delete(connection, "trial_system_attributes", {"key": _text, "value_json": _json})
        lost += _delete(connection, "study_user_attributes", {"key": _text, "value_json": _json})
        lost += _delete(connection, "study_system_attributes", {"key": _text, "value_json": _json})
        lost += _delete(connection, "trial_values", {"value": _number, "value_type": _KINDS.__contains__})
        lost += _delete(
            connection, "trial_params", {"param_name": _text, "param_value": _number, "distribution_json": _domain}
        )
        for trial_id in _bad(connection, "trials", "trial_id", _TRIAL_CHECKS):
            connection.execute(
                "update trials set state = 'FAIL', datetime_start = null, datetime_complete = null, number = "
                "(select count(*) from trials as one where one.study_id = trials.study_id and one.trial_id < ?) "
                "where trial_id = ?",
                (trial_id, trial_id),
            )
            lost += 1
    return lost


def _delete(connection: sqlite3.Connection, table: str, checks: dict[str, _Check]) -> int:
    bad = _bad(connection, table, "rowid", checks)
    connection.executemany(f"delete from {table} where rowid = ?", [(row,) for row in bad])
    return len(bad)


def _bad(connection: sqlite3.Connection, table: str, key: str, checks: dict[str, _Check]) -> list[int]:
    """Returns the rows of a table in which a column is damaged."""
    rows = connection.execute(f"select {key}, {', '.join(checks)} from {table}").fetchall()
    return [row[0] for row in rows if not all(map(lambda check, cell: check(cell), checks.values(), row[1:]))]


def _text(cell: object) -> bool:
    try:
        return isinstance(cell, bytes) and bool(cell.decode())
    except UnicodeDecodeError:
        return False


def _json(cell: object) -> bool:
    try:
        json.loads(cell.decode() if isinstance(cell, bytes) else "")
    except ValueError:  # also raised for invalid UTF-8
        return False
    return True


def _domain(cell: object) -> bool:
    try:
        json_to_distribution(cell.decode() if isinstance(cell, bytes) else "")
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
    return True


def _number(cell: object) -> bool:
    return cell is None or isinstance(cell, (int, float))


def _moment(cell: object) -> bool:
    try:
        return cell is None or bool(datetime.fromisoformat(cell.decode() if isinstance(cell, bytes) else ""))
    except ValueError:
        return False


_TRIAL_CHECKS: dict[str, _Check] = {
    "state": _STATES.__contains__, "number": lambda cell: isinstance(cell, int), "datetime_start": _moment,
    "datetime_complete": _moment,
}  # fmt: skip
