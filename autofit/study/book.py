"""Book: one Optuna study, with the calls on its storage that a `Study` needs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import TrialState, create_trial
from sqlalchemy.orm import scoped_session, sessionmaker

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.study.request import Context, Request
from autofit.study.wording import columns, holds, verdict

STUDY_SCHEMA = "autofit.study/1"

_SCHEMA, _OBJECTIVE, _ENVIRONMENT = "autofit.schema", "autofit.objective", "autofit.environment."
_REQUEST, _OUTCOME = "autofit.request", "autofit.outcome"


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial as it was found in the storage; without outcome while it runs."""

    book: "Book"
    number: int
    request: Request
    environment: Environment
    outcome: Outcome | None


@dataclass(frozen=True, slots=True, eq=False)
class Book:
    """One Optuna study, with the calls on its storage that a `Study` needs."""

    storage: BaseStorage
    study: optuna.Study
    study_id: int
    objective: Objective
    distributions: dict[str, BaseDistribution] = field(default_factory=dict)

    @classmethod
    def load(cls, storage: BaseStorage, name: str, objective: Objective) -> Self:
        """Returns the study of that name, made if need be; `objective` holds for a new one.

        Raises:
            StudyError: it is a study of another program, or of a newer schema.
        """
        # The sampler is never asked; this one costs nothing.
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),
        )
        book = cls(storage, study, storage.get_study_id_from_name(name), objective)
        attributes = study.user_attrs
        if _SCHEMA not in attributes and storage.get_n_trials(book.study_id) == 0:
            study.set_user_attr(_OBJECTIVE, objective.unit)
            study.set_user_attr(_SCHEMA, STUDY_SCHEMA)
            return book
        _check_schema(name, attributes.get(_SCHEMA))
        return replace(book, objective=objective.model_copy(update={"unit": attributes[_OBJECTIVE]}))

    def remember(self, context: Context) -> None:
        """Keeps the environment of this run, which its trials name by digest."""
        self.study.set_user_attr(_ENVIRONMENT + context.digest, context.environment.model_dump(mode="json"))

    def add(self, request: Request) -> int:
        """Adds a running trial in one transaction and returns its number."""
        values = {k: v for k, v in request.plan.values.items() if holds(self.distributions.get(k), v)}
        template = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions={name: self.distributions[name] for name in values},
            user_attrs={_REQUEST: request.model_dump_json(), "purpose": request.purpose.value},
        )
        return self.storage.get_trial_number_from_id(self.storage.create_new_trial(self.study_id, template))

    def settle(self, number: int, outcome: Outcome, memory_bytes: int) -> None:
        """Writes what became of a running trial, all of it or nothing."""
        told = verdict(outcome, self.objective, memory_bytes)
        with _one_transaction(self.storage):
            trial_id = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
            trial = optuna.trial.Trial(self.study, trial_id)
            # Text, because NaN is not JSON and would break the dashboard's page; our own reader understands it.
            trial.set_user_attr(_OUTCOME, json.dumps(outcome.model_dump(mode="json")))
            for key, value in columns(outcome).items():
                trial.set_user_attr(key, value)
            for key, violation in told.constraints.items():
                trial.set_constraint(key, violation)
            self.study.tell(trial, told.value, state=told.state)

    def entries(self) -> Iterator[Entry | None]:
        """Yields the trials; None for one that has no record of ours, or one that cannot be read."""
        environments = self.study.user_attrs
        states = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        for found in self.study.get_trials(deepcopy=False, states=states):
            try:
                request = Request.model_validate_json(found.user_attrs[_REQUEST])
                environment = Environment.model_validate(environments[_ENVIRONMENT + request.environment])
                text = found.user_attrs[_OUTCOME] if found.state.is_finished() else None
                outcome = None if text is None else Outcome.model_validate_json(text)
            except (LookupError, ValueError):  # pydantic's ValidationError is a ValueError
                yield None
                continue
            yield Entry(self, found.number, request, environment, outcome)


@contextmanager
def _one_transaction(storage: BaseStorage) -> Iterator[None]:
    """Makes one transaction of all calls on a database: whole or not there, and one wait for the disk, not nine.

    Optuna commits after each call. Its sessions are bound, for a moment, to a transaction of ours, which their commits
    leave open and their rollbacks end.
    """
    if not isinstance(storage, RDBStorage):
        yield
        return
    own = storage.scoped_session
    with storage.engine.begin() as connection:
        maker = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
        storage.scoped_session = scoped_session(maker)
        try:
            yield
        finally:
            storage.scoped_session = own


def _check_schema(name: str, found: object) -> None:
    if found == STUDY_SCHEMA:
        return
    if isinstance(found, str) and found.startswith("autofit.study/"):
        raise StudyError(
            f"the study {name} has the schema {found}; expected {STUDY_SCHEMA}, which is what this version reads. "
            "Upgrade autofit, or choose another study."
        )
    raise StudyError(
        f"the study {name} was not made by autofit: found trials but no schema; expected {STUDY_SCHEMA}. Choose "
        "another name, or another storage."
    )
