"""Trials in the tables of Optuna: by its own calls, in two transactions, each whole or not there."""

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from sqlalchemy import event
from sqlalchemy.engine import Engine

from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.study.optuna_study import OptunaStudy
from tests.study.samples import BUDGET, PLAN, failed, measured, reopen, space, storage_at

ADDED = re.compile(
    r'\\"steps_per_window\\": 1, |\\"new_shape_s\\": 0.0, |\\"loading\\": null, |, \\"compiler_notes\\": \[\]'
)
"""Fields that records have had since: the checksums of such records differ as well."""

Rows = dict[str, list[dict[str, object]]]

THEIRS = failed(Status.NUMERIC)

OUTCOMES = [measured(), failed(Status.OUT_OF_MEMORY), failed(Status.NUMERIC), failed(Status.CRASHED)]
STORED = json.loads((Path(__file__).parents[1] / "data" / "study_rows.json").read_text())
"""The tables of a study with these outcomes, as autofit wrote them itself before Optuna's calls did."""


def settle_as_another_process(db: Path, number: int) -> None:
    OptunaStudy.load(storage_at(db), "net", Objective()).settle(number, THEIRS, BUDGET)


def test_an_outcome_is_written_in_one_commit(db: Path) -> None:
    study, commits = reopen(db), []

    def committed(*args: object) -> None:
        commits.append(args)

    number = study.begin(PLAN, Purpose.PROBE)
    event.listen(Engine, "commit", committed)
    try:
        study.finish(number, measured())
    finally:
        event.remove(Engine, "commit", committed)
    assert len(commits) == 1


def plan_of(number: int) -> Plan:
    return PLAN.replace(micro_batch_size=number + 1)


def rows_of(path: Path, names: Iterable[str]) -> Rows:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {name: [dict(row) for row in connection.execute(f"select * from {name}")] for name in names}


def compared(rows: Rows) -> Rows:
    """Returns tables without what differs from run to run: moments and processes."""
    moments, found = {"datetime_start", "datetime_complete"}, dict(rows)
    found["trials"] = [{key: row[key] for key in row.keys() - moments} for row in rows["trials"]]
    found["trial_user_attributes"] = [
        {**row, "value_json": ADDED.sub("", str(row["value_json"]).partition("host")[0])}
        for row in rows["trial_user_attributes"]
        if row["key"] not in ("autofit.request.sum", "autofit.outcome.sum")
    ]
    return found


def test_a_study_that_autofit_wrote_without_optuna_is_read(db: Path) -> None:
    with closing(sqlite3.connect(db)) as connection, connection:
        for name, rows in STORED.items():
            connection.execute(f"delete from {name}")
            for row in rows:
                connection.execute(
                    f"insert into {name} ({', '.join(row)}) values ({', '.join('?' * len(row))})", tuple(row.values())
                )
    study = reopen(db)
    assert not [note for note in study.notes if "readable" in note or "damaged" in note]
    assert [(trial.number, trial.plan, trial.outcome) for trial in study.earlier()] == [
        (number, plan_of(number), outcome) for number, outcome in enumerate(OUTCOMES[:3])
    ]
    assert study.begin(PLAN, Purpose.PROBE) == len(OUTCOMES)


def test_the_tables_are_as_autofit_wrote_them_without_optuna(db: Path) -> None:
    study = reopen(db)
    for number, outcome in enumerate(OUTCOMES):
        study.finish(study.begin(plan_of(number), Purpose.PROBE), outcome)
    assert compared(rows_of(db, STORED)) == compared(STORED)


def test_of_two_that_finish_a_trial_each_keeps_what_it_found(db: Path) -> None:
    ours = reopen(db)
    number = ours.begin(PLAN, Purpose.PROBE)
    settle_as_another_process(db, number)
    assert ours.finish(number, measured()).number == number + 1
    kept = optuna.load_study(study_name="net", storage=storage_at(db)).trials
    assert [trial.user_attrs["status"] for trial in kept] == [THEIRS.status.value, "measured"]


def test_of_two_that_finish_a_trial_at_once_one_is_refused(db: Path) -> None:
    """The other one finishes it after we found it running, just before our first write."""
    ours = reopen(db)
    number = ours.begin(PLAN, Purpose.PROBE)
    written: list[Any] = []

    def meanwhile(*args: object) -> None:
        if str(args[2]).startswith("INSERT") and not written:
            written.append(args)
            settle_as_another_process(db, number)

    event.listen(Engine, "before_cursor_execute", meanwhile)
    try:
        assert ours.finish(number, measured()).number == number + 1
    finally:
        event.remove(Engine, "before_cursor_execute", meanwhile)
    kept = optuna.load_study(study_name="net", storage=storage_at(db)).trials
    assert [trial.user_attrs["status"] for trial in kept] == [THEIRS.status.value, "measured"]
    assert [trial.constraints["valid"] for trial in kept] == [1.0, -1.0]


def test_trials_of_two_processes_are_numbered_in_turn(db: Path) -> None:
    one, two = reopen(db), reopen(db)
    assert [study.begin(PLAN, Purpose.PROBE) for study in (one, two, one, two)] == [0, 1, 2, 3]


def test_choices_that_another_process_has_changed_since_are_not_mixed(db: Path) -> None:
    early, late = reopen(db), reopen(db, facts=space(precisions=("fp32", "bf16", "fp16")))
    early.begin(PLAN, Purpose.PROBE)
    with pytest.raises(StudyError, match="could not be written"):
        late.begin(PLAN, Purpose.PROBE)
    (kept,) = optuna.load_study(study_name="net", storage=storage_at(db)).trials
    assert kept.distributions["precision"] == CategoricalDistribution(("fp32", "bf16"))


def test_the_outcome_of_a_trial_that_was_deleted_is_kept(db: Path) -> None:
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROBE)
    with closing(sqlite3.connect(db)) as connection, connection:
        for table in ("trial_params", "trial_user_attributes", "trials"):
            connection.execute(f"delete from {table}")
    study.finish(number, measured())
    assert [trial.outcome for trial in reopen(db).earlier()] == [measured()]


def test_a_finished_trial_is_not_settled_again(db: Path) -> None:
    number = reopen(db).begin(PLAN, Purpose.PROBE)
    settle_as_another_process(db, number)
    with pytest.raises(UpdateFinishedTrialError):
        settle_as_another_process(db, number)


def test_values_have_a_name_for_the_dashboard_that_is_written_once(db: Path) -> None:
    reopen(db)
    kept = optuna.load_study(study_name="net", storage=storage_at(db))
    assert kept.metric_names == ["samples/s"]
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        kept.set_metric_names(["speed"])
    reopen(db)
    assert optuna.load_study(study_name="net", storage=storage_at(db)).metric_names == ["speed"]
