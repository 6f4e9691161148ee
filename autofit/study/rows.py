"""Rows: a trial written straight into the tables of an Optuna study in SQLite, in one transaction each time.

Optuna's own calls write one attribute each and read the trial again for it: 78 statements a trial, against 12 here.
What is in the tables afterwards is the same, which a test compares.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
    json_to_distribution,
)
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import (  # private; the tables they describe are what optuna-dashboard reads
    TrialModel,
    TrialParamModel,
    TrialSystemAttributeModel,
    TrialUserAttributeModel,
    TrialValueModel,
)
from optuna.trial import TrialState
from sqlalchemy import insert
from sqlalchemy.orm import Session

from autofit.core.plan import KnobValue
from autofit.study.wording import Verdict

_CONSTRAINT = "constraints:"  # so a trial's constraints are named among its system attributes


@dataclass(slots=True)
class Rows:
    """The tables of one study in SQLite."""

    storage: RDBStorage
    study_id: int
    _ids: dict[int, int] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)

    def add(
        self, values: Mapping[str, KnobValue], distributions: Mapping[str, BaseDistribution], about: Mapping[str, str]
    ) -> int:
        """Adds a running trial and returns its number.

        Args:
            values: its parameters.
            distributions: at least of these.
            about: its user attributes.

        Raises:
            ValueError: the study has another distribution of a parameter.
        """
        with Session(self.storage.engine) as session, session.begin():
            trial = TrialModel(study_id=self.study_id, state=TrialState.RUNNING)
            trial.datetime_start = datetime.now()
            session.add(trial)
            session.flush()  # locks the file: from here on nobody else counts or adds
            trial_id, number = int(trial.trial_id), trial.count_past_trials(session)
            trial.number = number
            self._check(session, {name: distributions[name] for name in values})
            _insert(session, TrialParamModel, trial_id, [_parameter(k, v, distributions[k]) for k, v in values.items()])
            _insert(session, TrialUserAttributeModel, trial_id, _attributes(about))
        self._ids[number] = trial_id
        self._checked |= values.keys()
        return number

    def settle(self, number: int, told: Verdict, about: Mapping[str, str | float]) -> None:
        """Writes what became of a running trial, all of it or nothing.

        Raises:
            UpdateFinishedTrialError: it does not run any more.
            LookupError: there is no such trial.
        """
        with Session(self.storage.engine) as session, session.begin():
            trial_id = self._id(session, number)
            running = session.query(TrialModel).filter_by(trial_id=trial_id, state=TrialState.RUNNING)
            # First of all, since it locks the file: of two that settle a trial, one is refused.
            if not running.update({TrialModel.state: told.state}, synchronize_session=False):
                raise UpdateFinishedTrialError(f"trial {number} was finished by somebody else")
            session.query(TrialModel).filter_by(trial_id=trial_id).one().datetime_complete = datetime.now()
            if told.value is not None:
                value, kind = TrialValueModel.value_to_stored_repr(told.value)
                _insert(session, TrialValueModel, trial_id, [{"objective": 0, "value": value, "value_type": kind}])
            constraints = {_CONSTRAINT + name: violation for name, violation in told.constraints.items()}
            _insert(session, TrialUserAttributeModel, trial_id, _attributes(about))
            _insert(session, TrialSystemAttributeModel, trial_id, _attributes(constraints))

    def _id(self, session: Session, number: int) -> int:
        if number not in self._ids:
            found = session.query(TrialModel.trial_id).filter_by(study_id=self.study_id, number=number).one_or_none()
            if found is None:
                raise LookupError(f"the study has no trial {number} any more")
            self._ids[number] = found[0]
        return self._ids[number]

    def _check(self, session: Session, distributions: Mapping[str, BaseDistribution]) -> None:
        """Compares with what other processes have written; not again once a trial of ours is there to compare with."""
        for name in distributions.keys() - self._checked:
            trials = session.query(TrialParamModel.distribution_json).join(TrialModel)
            found = trials.filter(TrialModel.study_id == self.study_id, TrialParamModel.param_name == name).first()
            if found is not None:
                check_distribution_compatibility(json_to_distribution(found[0]), distributions[name])


Row = dict[str, object]


def _insert(session: Session, table: type[object], trial_id: int, rows: Sequence[Row]) -> None:
    if rows:
        session.execute(insert(table), [{"trial_id": trial_id, **row} for row in rows])


def _parameter(name: str, value: KnobValue, kind: BaseDistribution) -> Row:
    text = distribution_to_json(kind)
    return {"param_name": name, "param_value": kind.to_internal_repr(value), "distribution_json": text}


def _attributes(values: Mapping[str, str | float]) -> list[Row]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]
