"""Study: the durable record of trials, stored as an Optuna study.

A trial is stored as RUNNING when `begin` returns, and with its complete outcome when `finish` returns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose, Trial
from autofit.study.current_space import in_terms_of
from autofit.study.earlier_trials import EarlierTrials
from autofit.study.location import LOCK_WAIT_S, Place
from autofit.study.optuna_distributions import distributions_of, domain
from autofit.study.optuna_storage import DAMAGED, connect, disconnect
from autofit.study.optuna_study import OptunaStudy
from autofit.study.repair import heal
from autofit.study.stored import first_of
from autofit.study.trial_start import RunContext, TrialStart


class Study:
    """The durable record of trials: an Optuna study.

    An object is used by one thread. Several processes may share a storage.

    Attributes:
        location: where the trials are stored, without secrets.
        notes: notes for the user from opening the study.
    """

    def __init__(
        self, place: Place, stored: OptunaStudy, past: EarlierTrials, earlier: Sequence[Trial], notes: Sequence[str]
    ) -> None:
        self.location = place.shown
        self.notes = tuple(notes)
        self._place, self._stored, self._context, self._past = place, stored, past.context, past
        self._earlier = tuple(earlier)
        self._running: dict[int, TrialStart] = {}

    @classmethod
    def open(
        cls,
        location: str | Path | None,
        *,
        name: str,
        environment: Environment,
        space: SpaceFacts,
        objective: Objective,
        memory_bytes: int,
    ) -> Self:
        """Opens the study `name` at `location`, or creates it.

        If the domain of a knob or the objective has changed, trials are stored in a new study `name#2`, `name#3`, ...
        of the same storage, since Optuna keeps one domain per parameter. The older trials are still used.

        Args:
            location: None or ":memory:" for this process only, a path of an SQLite file, created with mode 0600, or a
                database URL.
            name: name of the study in the storage.
            environment: environment in which this run measures.
            space: the knobs of the search.
            objective: defines the score of a trial.
            memory_bytes: memory budget by which earlier trials are judged.

        Raises:
            StudyError: the storage cannot be used, is not of autofit, or has a newer schema.
        """
        place = Place.of(location)
        context = RunContext.of(environment, objective, memory_bytes)
        with place.guarded("opened"), place.exclusive():
            try:
                stored, past = _read(place, name, context, space)
            except DAMAGED as error:
                lost = 0 if place.path is None else heal(place.path, LOCK_WAIT_S)
                if not lost:
                    raise error from None
                stored, past = _read(place, name, context, space)
                past.notes.append(f"the study was damaged: {lost} of its values could not be read and were deleted")
        earlier, more = in_terms_of(space, past.trials)
        return cls(place, replace(stored, distributions=distributions_of(space)), past, earlier, [*past.notes, *more])

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        """Records that a trial of `plan` is starting, and returns its number.

        Raises:
            StudyError: the record cannot be written.
        """
        request = TrialStart.now(plan, purpose, self._context)
        with self._place.guarded("written"):
            number = self._stored.add(request)
        self._running[number] = request
        return number

    def finish(self, number: int, outcome: Outcome) -> Trial:
        """Records the outcome of a trial of this run. When it returns, the record is on disk.

        Raises:
            StudyError: the record cannot be written (calling again is allowed), or the trial is not running here.
        """
        request = self._running.get(number)
        if request is None:
            raise StudyError(
                f"trial {number} cannot be finished: found running {sorted(self._running) or 'none'}; expected a "
                "number returned by begin() that is not finished yet. Call begin() first."
            )
        with self._place.guarded("written"):
            kept = self._settled(number, request, outcome)
        del self._running[number]
        return Trial(number=kept, plan=request.plan, outcome=outcome, purpose=request.purpose)

    def _settled(self, number: int, request: TrialStart, outcome: Outcome) -> int:
        """Writes an outcome and returns the number of its trial, a new one if the trial was set to FAIL or deleted.

        Containers that share a host name do not see each other's processes, and treat them as dead.
        """
        try:
            self._stored.settle(number, outcome, request.memory_bytes)
        except (UpdateFinishedTrialError, KeyError):
            number = self._stored.add(request)
            self._stored.settle(number, outcome, request.memory_bytes)
        return number

    def earlier(self) -> Sequence[Trial]:
        """Returns the trials that were finished before this study was opened and are valid for this run, oldest first.

        These are trials of a comparable environment, judged by the present budget, with a value for each present knob.
        `notes` states whether some of their plans are not searched by this run. A plan that was running when its
        process died is left out once, so that it may be tried again. After a second death it is returned as CRASHED.
        """
        return self._earlier

    def drop(self, reason: str) -> None:
        """Drops the comparable trials of earlier runs, for later runs too. They stay on disk.

        Raises:
            StudyError: the record cannot be written.
        """
        with self._place.guarded("written"):
            for stored in {id(entry.study): entry.study for entry in self._past.comparable}.values():
                stored.drop([entry.number for entry in self._past.comparable if entry.study is stored], reason)
        self._earlier = ()

    @property
    def name(self) -> str:
        """Name of the Optuna study that stores the trials of this run."""
        return self._stored.study.study_name

    def close(self) -> None:
        """Closes the connections to a database. The study can still be used, which opens them again."""
        disconnect(self._stored.storage)

    def kept_notes(self) -> Mapping[str, object]:
        """Returns the notes on the whole study and its continuations, by name (`note`); of equal names the newest.

        Raises:
            StudyError: they cannot be read.
        """
        storage, notes = self._stored.storage, dict[str, object]()
        with self._place.guarded("read"):
            for name in _family(storage, first_of(self.name)):
                notes |= storage.get_study_user_attrs(storage.get_study_id_from_name(name))
            return notes | self._stored.study.user_attrs

    def note(self, name: str, value: dict[str, object]) -> None:
        """Stores a named note on the whole study, as JSON.

        Raises:
            StudyError: the note cannot be written.
        """
        with self._place.guarded("written"):
            self._stored.study.set_user_attr(name, value)


def _read(place: Place, name: str, context: RunContext, space: SpaceFacts) -> tuple[OptunaStudy, EarlierTrials]:
    """Returns the study that stores this run's trials, and the trials of earlier runs."""
    storage = connect(place)
    studies = [OptunaStudy.load(storage, found, context.objective) for found in _family(storage, name)]
    stored, notes = _choose(storage, name, studies, space, context.objective)
    stored.remember(context)
    past = EarlierTrials(context, notes)
    past.read([*studies, *([] if stored in studies else [stored])])
    return stored, past


def _choose(
    storage: BaseStorage, name: str, studies: Sequence[OptunaStudy], space: SpaceFacts, objective: Objective
) -> tuple[OptunaStudy, list[str]]:
    """Returns the newest of `studies` that can store trials of this space, or a new one with a note why."""
    reasons: list[str] = []
    for stored in reversed(studies):
        found = _conflicts(stored, space, objective)
        if not found:
            return stored, []
        reasons = reasons or found
    if not studies:
        return OptunaStudy.load(storage, name, objective), []
    fresh = f"{name}#{max(int(stored.study.study_name[len(name) + 1 :] or 1) for stored in studies) + 1}"
    return OptunaStudy.load(storage, fresh, objective), [
        f"trials of this run are stored in the study {fresh}: {'; '.join(reasons)}"
    ]


def _conflicts(stored: OptunaStudy, space: SpaceFacts, objective: Objective) -> list[str]:
    """Returns why an Optuna study cannot store trials of this space."""
    reasons = []
    if stored.objective.unit != objective.unit:
        reasons.append(f"objective: {objective.unit}, was {stored.objective.unit}")
    wanted = distributions_of(space)
    for trial in stored.study.get_trials(deepcopy=False):
        for knob in wanted.keys() & trial.distributions.keys():
            now, was = domain(wanted[knob]), domain(trial.distributions[knob])
            if now != was and f"{knob}: {now}, was {was}" not in reasons:
                reasons.append(f"{knob}: {now}, was {was}")
    return reasons


def _family(storage: BaseStorage, name: str) -> list[str]:
    """Returns the names of the study and its continuations, oldest first."""
    pattern = re.compile(re.escape(name) + r"(#[0-9]+)?")
    return [study.study_name for study in storage.get_all_studies() if pattern.fullmatch(study.study_name)]
