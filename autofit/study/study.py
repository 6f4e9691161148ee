"""Study: the durable record of trials, which is an Optuna study; and `read_studies`, which changes nothing.

A trial is on disk as RUNNING when `begin` returns, and with its outcome when `finish` returns.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState, create_trial

from autofit.core.environment import Environment
from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose, Trial
from autofit.study import stored_trials
from autofit.study.location import StudyPlace
from autofit.study.optuna_terms import columns, distributions_of, holds, optuna_result
from autofit.study.storages import connect, disconnect, existing, quiet, studies_in, study_in
from autofit.study.stored_trials import StoredTrial, TrialStart, counted_trials, sealed

_DIED = Outcome(status=Status.CRASHED, reason=DIED)


class Study:
    """The durable record of trials: an Optuna study, which is made if there is none. An object is used by one thread.

    Args:
        location: None or ":memory:" for this process only, a path of a journal file, created with mode 0600, or a
            storage URL of Optuna's.
        objective: defines the score of a trial.
        memory_bytes: memory budget by which earlier trials are judged.

    Attributes:
        location: where the trials are stored, without secrets.
        notes: notes for the user from opening the study.

    Raises:
        StudyError: the storage cannot be used, is not of autofit, or has a newer schema. Each method raises it if the
            storage cannot be read or written.
    """

    def __init__(
        self,
        location: str | Path | None,
        *,
        name: str,
        environment: Environment,
        space: SpaceFacts,
        objective: Objective,
        memory_bytes: int,
    ) -> None:
        self._environment, self._objective, self._memory_bytes = environment, objective, memory_bytes
        self._place, self._running = StudyPlace.of(location), dict[int, TrialStart]()
        self.location, notes = self._place.shown, list[str]()
        with self._place.guarded("opened"):
            self._storage = connect(self._place, notes)
            self._study = study_in(self._storage, name, stored_trials.STUDY_SCHEMA, self._place.shown)
            with quiet():
                if self._study.metric_names is None:
                    self._study.set_metric_names([f"{objective.unit}/s"])  # of the values in optuna-dashboard
            self._study_id = self._storage.get_study_id_from_name(name)
            trials, attributes = self._study.get_trials(deepcopy=False), self._study.user_attrs
            self._distributions = distributions_of(space, trials)
            for drop in attributes.get(stored_trials.DROPPED, ()):
                notes.append(f"{counted_trials(len(drop['trials']))} dropped on {drop['when']}: {drop['reason']}")
            found, unreadable = stored_trials.readable(trials, attributes)
            if unreadable:
                notes.append(f"{counted_trials(unreadable)} without a readable autofit record left out")
            stored = stored_trials.comparable(self._settled_orphans(found, notes), environment, notes)
            self._comparable = [each.number for each in stored]
            self._earlier = stored_trials.usable(stored, space, memory_bytes, notes)
        self.notes = tuple(notes)

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        """Records that a trial of `plan` is starting, and returns its number."""
        start = TrialStart.now(plan, purpose, self._environment, self._memory_bytes)
        with self._place.guarded("written"):
            number = self._add(start)
        self._running[number] = start
        return number

    def finish(self, number: int, outcome: Outcome) -> Trial:
        """Records the outcome of a trial of this run. When it returns, the record is on disk.

        Raises:
            StudyError: the trial is not running here, or the record cannot be written; calling again is allowed.
        """
        start = self._running.get(number)
        if start is None:
            raise StudyError(
                f"trial {number} cannot be finished: found running {sorted(self._running) or 'none'}; expected a "
                "number returned by begin() that is not finished yet. Call begin() first."
            )
        kept = number
        with self._place.guarded("written"):
            try:
                self._settle(number, outcome, start.memory_bytes)
            except UpdateFinishedTrialError:
                # Containers that share a host name do not see each other's processes, and treat them as dead.
                kept = self._add(start)
                self._settle(kept, outcome, start.memory_bytes)
        del self._running[number]
        return Trial(number=kept, plan=start.plan, outcome=outcome, purpose=start.purpose)

    def earlier(self) -> Sequence[Trial]:
        """Returns the trials that were finished before this study was opened and are valid for this run, oldest first.

        These are trials of a comparable environment, judged by the present budget, with a value for each present knob.
        `notes` states whether some of their plans are not searched by this run. A plan that was running when its
        process died is left out once, so that it may be tried again. After a second death it is returned as CRASHED.
        """
        return tuple(self._earlier)

    def drop(self, reason: str, plan: Plan | None = None) -> None:
        """Drops the comparable trials of earlier runs, or those of `plan`, for later runs too. They stay on disk.

        Later runs tell the user the reason.
        """
        of_plan = [trial.number for trial in self._earlier if trial.plan == plan]
        dropped = self._comparable if plan is None else of_plan
        drop = {"trials": dropped, "reason": reason, "when": datetime.now(UTC).isoformat(timespec="seconds")}
        self.note(stored_trials.DROPPED, [*self.kept_notes().get(stored_trials.DROPPED, ()), drop])
        self._comparable = [number for number in self._comparable if number not in dropped]
        self._earlier = [trial for trial in self._earlier if trial.number not in dropped]

    def close(self) -> None:
        """Closes the connections to a database. The study can still be used, which opens them again."""
        disconnect(self._storage)

    def kept_notes(self) -> Mapping[str, Any]:
        """Returns the notes on the whole study, by name (`note`)."""
        with self._place.guarded("read"):
            return self._study.user_attrs

    def note(self, name: str, value: object) -> None:
        """Stores a named note on the whole study, as JSON."""
        with self._place.guarded("written"):
            self._study.set_user_attr(name, value)

    def _add(self, start: TrialStart) -> int:
        """Adds a running trial and returns its number."""
        values = {k: v for k, v in start.plan.values.items() if holds(self._distributions.get(k), v)}
        template = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions={name: self._distributions[name] for name in values},
            user_attrs={stored_trials.START: sealed(start.model_dump_json()), "purpose": start.purpose.value},
        )
        return self._storage.get_trial_number_from_id(self._storage.create_new_trial(self._study_id, template))

    def _settle(self, number: int, outcome: Outcome, memory_bytes: int) -> None:
        """Writes the outcome of a running trial. Its state comes last, so that a finished trial is complete."""
        result = optuna_result(outcome, self._objective, memory_bytes)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        trial = optuna.trial.Trial(self._study, trial_id)
        # As text, because NaN is not valid JSON and would break the dashboard. Python's reader accepts it.
        record = sealed(json.dumps(outcome.model_dump(mode="json")))
        for key, value in {**columns(outcome), stored_trials.OUTCOME: record}.items():
            trial.set_user_attr(key, value)
        for key, value in result.constraints.items():
            if key not in trial.constraints:  # a write that failed is made again
                trial.set_constraint(key, value)
        self._study.tell(trial, result.value, result.state)

    def _settled_orphans(self, trials: Sequence[StoredTrial], notes: list[str]) -> list[StoredTrial]:
        """Returns the finished trials. Those whose process died meanwhile are recorded as failed."""
        finished, orphans = list[StoredTrial](), 0
        for each in trials:
            if each.outcome is not None:
                finished.append(each)
            elif each.start.alive:
                notes.append(
                    f"trial {each.number} is running in process {each.start.pid} on {each.start.host}: left alone"
                )
            else:
                with suppress(UpdateFinishedTrialError):  # its process finished it, and ended after it was read here
                    self._settle(each.number, _DIED, each.start.memory_bytes)
                    orphans += 1
                    finished.append(replace(each, outcome=_DIED))
        if orphans:
            verb = "was running when its" if orphans == 1 else "were running when their"
            notes.append(f"{counted_trials(orphans)} {verb} process died: recorded as failed")
        return finished


@dataclass(frozen=True, slots=True)
class ReadStudy:
    """A study as it is stored.

    Attributes:
        notes: its attributes.
        trials: the finished trials and those whose process died, oldest first. Dropped trials are left out.
        unreadable: number of trials without a readable record.
    """

    name: str
    notes: Mapping[str, Any]
    trials: tuple[StoredTrial, ...]
    unreadable: int


def read_studies(location: str | Path) -> list[ReadStudy]:
    """Returns the studies of a storage in the order in which they were made. Nothing is settled, cut off or created.

    Raises:
        StudyError: it cannot be read, or holds no study of autofit.
    """
    place, found = StudyPlace.of(location), list[ReadStudy]()
    with place.guarded("read"):
        storage = existing(place)
        studies = [] if storage is None else studies_in(storage)
        for each in studies:
            if (notes := each.user_attrs).get(stored_trials.SCHEMA) == stored_trials.STUDY_SCHEMA:
                trials, unreadable = stored_trials.readable(each.get_trials(deepcopy=False), notes)
                ended = [replace(t, outcome=t.outcome or _DIED) for t in trials if t.outcome or not t.start.alive]
                found.append(ReadStudy(each.study_name, notes, tuple(ended), unreadable))
        disconnect(storage)
    if not found:
        what = "no file, or an empty one" if storage is None else f"{len(studies)} studies, none made by this version"
        raise StudyError(
            f"{place.shown} cannot be shown: found {what}; expected a study of the schema "
            f"{stored_trials.STUDY_SCHEMA}. Name the study of `autofit tune --study`."
        )
    return found
