"""Trials that are written straight into the tables: as Optuna's own calls write them, and no more often than needed."""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine

from autofit.core.errors import StudyError
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.study.optuna_names import OptunaResult
from autofit.study.sqlite_rows import Rows
from tests.study.samples import PLAN, failed, measured, reopen, space

OUTCOMES = [measured(), failed(Status.OUT_OF_MEMORY), failed(Status.NUMERIC), failed(Status.CRASHED)]
UNLIKE = {"datetime_start", "datetime_complete"}


def rows_of(path: Path) -> dict[str, list[dict[str, object]]]:
    """Returns all tables of a study without what differs from run to run: moments."""
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        found = {name: [dict(row) for row in connection.execute(f"select * from {name}")] for name in names}
    found["trials"] = [{name: row[name] for name in row.keys() - UNLIKE} for row in found["trials"]]
    for row in found["trial_user_attributes"]:
        if row["key"] == "autofit.request":
            row["value_json"] = str(row["value_json"]).partition("started")[0]
        if row["key"] == "autofit.request.sum":  # of a text with that moment
            row["value_json"] = ""
    return found


def ours_verdict() -> OptunaResult:
    return OptunaResult(TrialState.COMPLETE, 1.0, {"memory": -0.5, "valid": -1.0})


def record(path: Path, outcomes: list[Outcome], by_rows: bool) -> None:
    study = reopen(path)
    if not by_rows:
        study._book = replace(study._book, rows=None)
    for size, outcome in enumerate(outcomes, 1):
        study.finish(study.begin(PLAN.replace(micro_batch_size=size), Purpose.PROBE), outcome)
    study.begin(PLAN, Purpose.PROOF)


@pytest.mark.parametrize(("version", "direct"), [("5.0.0", True), ("5.0.3", True), ("5.1.0", False), ("6.0.0", False)])
def test_versions_of_optuna_that_were_not_compared_write_for_themselves(
    db: Path, monkeypatch: pytest.MonkeyPatch, version: str, direct: bool
) -> None:
    monkeypatch.setattr(optuna, "__version__", version)
    study = reopen(db)
    assert (study._book.rows is not None) is direct
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert [trial.plan for trial in reopen(db).earlier()] == [PLAN]


def test_the_tables_are_as_optuna_writes_them(db: Path, tmp_path: Path) -> None:
    other = shutil.copy(db, tmp_path / "optuna.db")
    record(db, OUTCOMES, by_rows=True)
    record(other, OUTCOMES, by_rows=False)
    assert rows_of(db) == rows_of(other)
    ours, theirs = (optuna.load_study(study_name="net", storage=f"sqlite:///{path}").trials for path in (db, other))
    for mine, own in zip(ours, theirs, strict=True):
        for name in ("datetime_start", "datetime_complete"):  # both in local time
            moments = getattr(mine, name), getattr(own, name)
            assert moments == (None, None) or abs((moments[0] - moments[1]).total_seconds()) < 60


def test_a_trial_costs_two_transactions_and_few_statements(db: Path) -> None:
    study, statements, commits = reopen(db), [], []

    def stated(*args: object) -> None:
        statements.append(args[2])

    def committed(*args: object) -> None:
        commits.append(args)

    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    event.listen(Engine, "before_cursor_execute", stated)
    event.listen(Engine, "commit", committed)
    try:
        study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    finally:
        event.remove(Engine, "before_cursor_execute", stated)
        event.remove(Engine, "commit", committed)
    assert len(commits) == 2
    assert len(statements) <= 9


def test_of_two_that_finish_a_trial_each_keeps_what_it_found(db: Path) -> None:
    ours, theirs = reopen(db), RDBStorage(f"sqlite:///{db}")
    number = ours.begin(PLAN, Purpose.PROBE)
    Rows(theirs, theirs.get_study_id_from_name("net")).settle(number, ours_verdict(), {"status": "theirs"})
    assert ours.finish(number, measured()).number == number + 1
    kept = optuna.load_study(study_name="net", storage=theirs).trials
    assert [trial.user_attrs["status"] for trial in kept] == ["theirs", "measured"]


def test_trials_of_two_processes_are_numbered_in_turn(db: Path) -> None:
    one, two = reopen(db), reopen(db)
    assert [study.begin(PLAN, Purpose.PROBE) for study in (one, two, one, two)] == [0, 1, 2, 3]


def test_choices_that_another_process_has_changed_since_are_not_mixed(db: Path) -> None:
    early, late = reopen(db), reopen(db, facts=space(precisions=("fp32", "bf16", "fp16")))
    early.begin(PLAN, Purpose.PROBE)
    with pytest.raises(StudyError, match="could not be written"):
        late.begin(PLAN, Purpose.PROBE)
    (kept,) = optuna.load_study(study_name="net", storage=f"sqlite:///{db}").trials
    assert kept.distributions["precision"] == CategoricalDistribution(("fp32", "bf16"))


def test_the_outcome_of_a_trial_that_was_deleted_is_kept(db: Path) -> None:
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROBE)
    with sqlite3.connect(db) as connection:
        for table in ("trial_params", "trial_user_attributes", "trials"):
            connection.execute(f"delete from {table}")
    study.finish(number, measured())
    assert [trial.outcome for trial in reopen(db).earlier()] == [measured()]


def test_a_finished_trial_is_not_settled_again(db: Path) -> None:
    storage = RDBStorage(f"sqlite:///{db}")
    rows = Rows(storage, storage.get_study_id_from_name("net"))
    number = rows.add({}, {}, {})
    rows.settle(number, ours_verdict(), {})
    with pytest.raises(UpdateFinishedTrialError):
        rows.settle(number, ours_verdict(), {})
