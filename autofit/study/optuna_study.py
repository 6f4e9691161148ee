"""OptunaStudy: one Optuna study, with the storage calls that a `Study` needs."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import TrialState, create_trial
from sqlalchemy.orm import scoped_session, sessionmaker

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.study.optuna_distributions import holds
from autofit.study.optuna_outcomes import columns, optuna_result
from autofit.study.optuna_storage import quiet
from autofit.study.stored import (
    CHECKSUM,
    DROPPED,
    ENVIRONMENT,
    OBJECTIVE,
    OUTCOME,
    PREFIX,
    REQUEST,
    SCHEMA,
    STUDY_SCHEMA,
    Drop,
    checksum,
    decoded,
)
from autofit.study.trial_start import RunContext, TrialStart


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A trial as stored. The outcome is None while it is running."""

    study: "OptunaStudy"
    number: int
    request: TrialStart
    environment: Environment
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, eq=False)
class OptunaStudy:
    """One Optuna study, with the storage calls that a `Study` needs."""

    storage: BaseStorage
    study: optuna.Study
    study_id: int
    objective: Objective
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)

    @classmethod
    def load(cls, storage: BaseStorage, name: str, objective: Objective) -> Self:
        """Loads the study, or creates it with `objective`.

        Raises:
            StudyError: the study is of another program or of a newer schema.
        """
        with quiet():
            study = optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize",
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(),  # never used; the cheapest to create
            )
        study_id = storage.get_study_id_from_name(name)
        loaded = cls(storage, study, study_id, objective)
        attributes = study.user_attrs
        known = {key for key in attributes if key.startswith(PREFIX)}
        if known or storage.get_n_trials(study_id):
            _check_schema(name, attributes.get(SCHEMA, STUDY_SCHEMA if known else None))
        for key, value in ((OBJECTIVE, objective.unit), (SCHEMA, STUDY_SCHEMA)):
            if key not in attributes:  # the study is new, or a damaged value was deleted
                study.set_user_attr(key, value)
        unit = attributes.get(OBJECTIVE, objective.unit)
        _name_values(study, f"{unit}/s")
        return replace(loaded, objective=objective.model_copy(update={"unit": unit}))

    def remember(self, context: RunContext) -> None:
        """Stores the environment of this run, to which its trials refer by digest."""
        self.study.set_user_attr(ENVIRONMENT + context.digest, context.environment.model_dump(mode="json"))

    def drop(self, numbers: Sequence[int], reason: str) -> None:
        """Records that these trials are never returned again."""
        drop = Drop(trials=tuple(numbers), reason=reason, when=datetime.now(UTC).isoformat(timespec="seconds"))
        drops = [one.model_dump(mode="json") for one in (*self.drops(), drop)]
        self.study.set_user_attr(DROPPED, drops)

    def drops(self) -> list[Drop]:
        """Returns the recorded drops."""
        return [Drop.model_validate(found) for found in self.study.user_attrs.get(DROPPED, [])]

    def add(self, request: TrialStart) -> int:
        """Adds a running trial in one transaction and returns its number.

        Raises:
            ValueError: the study has a different distribution for a parameter.
        """
        values = {k: v for k, v in request.plan.values.items() if holds(self.distributions.get(k), v)}
        template = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions={name: self.distributions[name] for name in values},
            user_attrs=_attributes(request),
        )
        _wait_for_lock(self.storage)
        return self.storage.get_trial_number_from_id(self.storage.create_new_trial(self.study_id, template))

    def settle(self, number: int, outcome: Outcome, memory_bytes: int) -> None:
        """Writes the outcome of a running trial in one transaction.

        Raises:
            UpdateFinishedTrialError: the trial is no longer running.
            KeyError: the trial does not exist.
        """
        result = optuna_result(outcome, self.objective, memory_bytes)
        # Stored as text, because NaN is not valid JSON and would break the dashboard. Python's reader accepts it.
        text = json.dumps(outcome.model_dump(mode="json"))
        attributes = {OUTCOME: text, OUTCOME + CHECKSUM: checksum(text), **columns(outcome)}
        values = None if result.value is None else [result.value]
        finished = create_trial(
            state=result.state, value=result.value, user_attrs=attributes, constraints=result.constraints
        )
        with _one_transaction(self.storage):
            trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
            for key, value in finished.user_attrs.items():
                self.storage.set_trial_user_attr(trial_id, key, value)
            for key, value in finished.system_attrs.items():  # the constraints
                self.storage.set_trial_system_attr(trial_id, key, value)
            self.storage.set_trial_state_values(trial_id, result.state, values)

    def entries(self) -> Iterator[StoredTrial | None]:
        """Yields the trials. None for a trial without an autofit record or with an unreadable one."""
        attributes = self.study.user_attrs
        states = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        for found in self.study.get_trials(deepcopy=False, states=states):
            record = decoded(found.user_attrs, attributes, finished=found.state.is_finished())
            yield None if record is None else StoredTrial(self, found.number, *record)


def _attributes(request: TrialStart) -> dict[str, Any]:
    text = request.model_dump_json()
    return {REQUEST: text, REQUEST + CHECKSUM: checksum(text), "purpose": request.purpose.value}


def _name_values(study: optuna.Study, name: str) -> None:
    """Names the values of trials, which optuna-dashboard shows, if they have no name yet."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            # In Optuna since 3.2, and still marked as experimental in 5.0.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([name])


def _wait_for_lock(storage: BaseStorage) -> None:
    """Waits once for an SQLite file that another process writes to. Otherwise Optuna's call would wait five times."""
    if isinstance(storage, RDBStorage) and storage.engine.name == "sqlite":
        with storage.engine.begin() as connection:
            connection.exec_driver_sql("begin immediate")


@contextmanager
def _one_transaction(storage: BaseStorage) -> Iterator[None]:
    """Runs all calls on a database in one transaction, so that all or nothing is written, with one disk sync.

    Optuna commits after each call. Here its sessions join our transaction, which their commits leave open and their
    rollbacks end.
    """
    if not isinstance(storage, RDBStorage):
        yield
        return
    previous = storage.scoped_session
    with storage.engine.begin() as connection:
        maker = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
        storage.scoped_session = scoped_session(maker)
        try:
            yield
        finally:
            storage.scoped_session = previous


def _check_schema(name: str, found: object) -> None:
    if found == STUDY_SCHEMA:
        return
    if isinstance(found, str) and found.startswith("autofit.study/"):
        raise StudyError(
            f"the study {name} has the schema {found}; expected {STUDY_SCHEMA}, which this version reads. "
            "Upgrade autofit, or choose another study."
        )
    raise StudyError(
        f"the study {name} was not made by autofit: found trials but no schema; expected {STUDY_SCHEMA}. Choose "
        "another name, or another storage."
    )
