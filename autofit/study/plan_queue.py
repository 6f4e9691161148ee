"""PlanQueue: the plans that a tuner hands out to workers, as waiting trials of its Optuna study.

A worker takes a plan by setting its trial from WAITING to RUNNING, which a database lets one process do.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self

from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from autofit.core.environment import Environment
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from autofit.study.optuna_storage import connected
from autofit.study.optuna_study import OptunaStudy
from autofit.study.stored import outcome_of, request_of
from autofit.study.trial_start import RunContext, TrialStart

FOR_OFFER, TAKEN_BY = "autofit.for_offer", "autofit.taken_by"
"""Attributes of a trial: the number of the offer that it belongs to, and of the worker that took it."""
WITHDRAWN = Outcome(status=Status.SKIPPED, reason="the search ended before a worker began it")


@dataclass(frozen=True, slots=True)
class QueuedPlan:
    """A plan that was handed out.

    Attributes:
        number: number of its trial.
        plan: the plan.
        outcome: None until it is known.
        worker: number of the worker that took it; None while it waits.
    """

    number: int
    plan: Plan
    outcome: Outcome | None
    worker: int | None

    @property
    def trial(self) -> Trial | None:
        """The finished trial; None until the outcome is known."""
        return None if self.outcome is None else Trial(number=self.number, plan=self.plan, outcome=self.outcome)


class PlanQueue:
    """The plans of one offer.

    Args:
        place: the database.
        stored: the Optuna study.
        context: facts common to all trials of this process.
        offer: number of the offer.
    """

    def __init__(self, place: Place, stored: OptunaStudy, context: RunContext, offer: int) -> None:
        self._place, self._stored, self._context, self._offer = place, stored, context, offer

    @classmethod
    @contextmanager
    def joined(cls, place: Place, offer: SearchOffer, number: int, environment: Environment) -> Iterator[Self]:
        """Gives the plans of an offer to a worker. No connection stays open afterwards.

        Args:
            place: the database.
            offer: the offer.
            number: its number.
            environment: where the worker measures.

        Raises:
            StudyError: the database cannot be used.
        """
        context = RunContext.of(environment, offer.objective, offer.memory_bytes)
        with ExitStack() as held:
            with place.guarded("opened"):
                storage = held.enter_context(connected(place))
                stored = OptunaStudy.load(storage, offer.study, offer.objective)
                stored.remember(context)
            yield cls(place, stored, context, number)

    def put(self, plan: Plan) -> int:
        """Hands out a plan, and returns the number of its trial.

        Raises:
            StudyError: it cannot be written.
        """
        with self._place.guarded("written"):
            request = TrialStart.now(plan, Purpose.PROBE, self._context)
            return self._stored.add(request, state=TrialState.WAITING, more={FOR_OFFER: self._offer})

    def take(self, worker: int) -> QueuedPlan | None:
        """Takes the plan that has waited longest; None if none waits.

        Raises:
            StudyError: the database cannot be used.
        """
        with self._place.guarded("written"):
            for number, attributes in self._stored.waiting():
                if attributes.get(FOR_OFFER) != self._offer:
                    continue
                plan = request_of(attributes).plan
                if self._stored.take(number, TrialStart.now(plan, Purpose.PROBE, self._context), {TAKEN_BY: worker}):
                    return QueuedPlan(number, plan, None, worker)
        return None

    def settle(self, number: int, outcome: Outcome) -> bool:
        """Writes the outcome of a plan. Returns whether it counts: not if the plan was given to somebody else.

        Raises:
            StudyError: it cannot be written.
        """
        with self._place.guarded("written"):
            try:
                self._stored.settle(number, outcome, self._context.memory_bytes)
            except UpdateFinishedTrialError:
                return False
        return True

    def finished(self, numbers: Collection[int]) -> frozenset[int]:
        """Returns which of these plans have an outcome.

        Raises:
            StudyError: the database cannot be read.
        """
        with self._place.guarded("read"):
            return self._stored.finished(numbers)

    def state(self, number: int, plan: Plan) -> QueuedPlan:
        """Returns what became of a plan that was handed out.

        Raises:
            StudyError: the database cannot be read.
        """
        with self._place.guarded("read"):
            attributes, finished = self._stored.attributes(number)
        outcome: Outcome | None = None
        if finished:
            try:
                outcome = outcome_of(attributes)
            except (LookupError, ValueError):
                outcome = Outcome(status=Status.CRASHED, reason="its record cannot be read")
        return QueuedPlan(number, plan, outcome, attributes.get(TAKEN_BY))

    def withdraw(self, numbers: Collection[int]) -> None:
        """Takes back plans that no worker has begun.

        Raises:
            StudyError: this cannot be written.
        """
        with self._place.guarded("written"):
            waiting = {number for number, _ in self._stored.waiting()}
        for number in waiting.intersection(numbers):
            self.settle(number, WITHDRAWN)
