"""Rows: a trial written straight into the tables of an Optuna study in SQLite, in one transaction each time.

Optuna's own calls write one attribute each and read the trial again for it: 78 statements a trial, against 9 here,
which are built once. What is in the tables afterwards is the same, which a test compares.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

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
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.sql.expression import Insert

from autofit.core.plan import KnobValue
from autofit.study.optuna_names import OptunaResult

_CONSTRAINT = "constraints:"  # so a trial's constraints are named among its system attributes

_TRIALS, _PARAMETERS = TrialModel.__table__, TrialParamModel.__table__
_OURS = _TRIALS.c.trial_id == bindparam("ours")
_OF_STUDY = _TRIALS.c.study_id == bindparam("of_study")

_ADD = insert(_TRIALS).values(state=TrialState.RUNNING)
_EARLIER = select(func.count()).select_from(_TRIALS).where(_OF_STUDY, _TRIALS.c.trial_id < bindparam("ours"))
_NUMBER = update(_TRIALS).where(_OURS)
_SETTLE = update(_TRIALS).where(_OURS, _TRIALS.c.state == TrialState.RUNNING)
_FIND = select(_TRIALS.c.trial_id).where(_OF_STUDY, _TRIALS.c.number == bindparam("wanted"))
_DISTRIBUTION = (
    select(_PARAMETERS.c.distribution_json)
    .join(_TRIALS)
    .where(_OF_STUDY, _PARAMETERS.c.param_name == bindparam("wanted"))
    .limit(1)
)
_ADD_VALUES = insert(TrialValueModel.__table__)
_ADD_PARAMETERS = insert(_PARAMETERS)
_ADD_USER_ATTRIBUTES = insert(TrialUserAttributeModel.__table__)
_ADD_SYSTEM_ATTRIBUTES = insert(TrialSystemAttributeModel.__table__)


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
        with self.storage.engine.begin() as connection:
            # First of all, since it locks the file: from here on nobody else counts or adds.
            added = connection.execute(_ADD, {"study_id": self.study_id, "datetime_start": _now()})
            trial_id = int(added.lastrowid)
            number = int(connection.execute(_EARLIER, {"of_study": self.study_id, "ours": trial_id}).scalar_one())
            connection.execute(_NUMBER, {"ours": trial_id, "number": number})
            self._check(connection, {name: distributions[name] for name in values})
            parameters = [_parameter(name, value, distributions[name]) for name, value in values.items()]
            _insert(connection, _ADD_PARAMETERS, trial_id, parameters)
            _insert(connection, _ADD_USER_ATTRIBUTES, trial_id, _attributes(about))
        self._ids[number] = trial_id
        self._checked |= values.keys()
        return number

    def settle(self, number: int, told: OptunaResult, about: Mapping[str, str | float]) -> None:
        """Writes what became of a running trial, all of it or nothing.

        Raises:
            UpdateFinishedTrialError: it does not run any more.
            LookupError: there is no such trial.
        """
        with self.storage.engine.begin() as connection:
            trial_id = self._id(connection, number)
            # First of all, since it locks the file: of two that settle a trial, one is refused.
            ended = {"ours": trial_id, "state": told.state, "datetime_complete": _now()}
            if not connection.execute(_SETTLE, ended).rowcount:
                raise UpdateFinishedTrialError(f"trial {number} was finished by somebody else")
            if told.value is not None:
                value, kind = TrialValueModel.value_to_stored_repr(told.value)
                _insert(connection, _ADD_VALUES, trial_id, [{"objective": 0, "value": value, "value_type": kind}])
            constraints = {_CONSTRAINT + name: violation for name, violation in told.constraints.items()}
            _insert(connection, _ADD_USER_ATTRIBUTES, trial_id, _attributes(about))
            _insert(connection, _ADD_SYSTEM_ATTRIBUTES, trial_id, _attributes(constraints))

    def _id(self, connection: Connection, number: int) -> int:
        if number not in self._ids:
            found = connection.execute(_FIND, {"of_study": self.study_id, "wanted": number}).scalar_one_or_none()
            if found is None:
                raise LookupError(f"the study has no trial {number} any more")
            self._ids[number] = int(found)
        return self._ids[number]

    def _check(self, connection: Connection, distributions: Mapping[str, BaseDistribution]) -> None:
        """Compares with what other processes have written; not again once a trial of ours is there to compare with."""
        for name in distributions.keys() - self._checked:
            found = connection.execute(_DISTRIBUTION, {"of_study": self.study_id, "wanted": name}).scalar()
            if found is not None:
                check_distribution_compatibility(json_to_distribution(found), distributions[name])


Row = dict[str, object]


def _now() -> datetime:
    """Returns the moment as the tables keep it: UTC that does not say so."""
    return datetime.now(UTC).replace(tzinfo=None)


def _insert(connection: Connection, into: Insert, trial_id: int, rows: Sequence[Row]) -> None:
    if rows:
        connection.execute(into, [{"trial_id": trial_id, **row} for row in rows])


def _parameter(name: str, value: KnobValue, kind: BaseDistribution) -> Row:
    text = distribution_to_json(kind)
    return {"param_name": name, "param_value": kind.to_internal_repr(value), "distribution_json": text}


def _attributes(values: Mapping[str, str | float]) -> list[Row]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in values.items()]
