"""FleetWorkers: the workers that answer the offer of a search in the database of its study."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autofit.core.briefing import Briefing
from autofit.core.objective import Objective
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.probing.child_request import Target
from autofit.search.workers import NoWorkers, Workers
from autofit.study.fleet import Fleet
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from autofit.study.plan_queue import PlanQueue
from autofit.study.study import Study

POLL_S = 0.05
"""Seconds between two looks at the plans that workers run, while nothing else is left to do."""
AHEAD = 1
"""Number of plans that wait while all workers are busy, so that a worker that ends does not wait for a plan."""
LOOK_S = 1.0
"""Seconds between two looks at which workers are alive."""


class FleetWorkers:
    """The workers that answer an offer in the database of the study.

    Args:
        queue: the plans that are handed out.
        fleet: tells which workers are alive.
        offer: number of the offer.
    """

    def __init__(self, queue: PlanQueue, fleet: Fleet, offer: int) -> None:
        self._queue, self._fleet, self._offer = queue, fleet, offer
        self._pending: dict[int, Plan] = {}
        self._alive: frozenset[int] = frozenset()
        self._looked_s = -LOOK_S

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the plans that were handed out and have no trial yet."""
        return frozenset(plan.key for plan in self._pending.values())

    def free(self) -> bool:
        """Returns whether another plan may be handed out: one more than there are workers."""
        self._look()
        return bool(self._alive) and len(self._alive) + AHEAD > len(self._pending)

    def hand_out(self, plan: Plan) -> None:
        """Gives a plan to the next free worker."""
        self._pending[self._queue.put(plan)] = plan

    def collect(self) -> list[Trial]:
        """Returns the trials that have ended since the last call. A plan whose worker died has crashed.

        If no worker is left, the plans that wait are taken back, so that the search does not wait for them.
        """
        if not self._pending:
            return []
        self._look()
        found = []
        for number in sorted(self._queue.finished(self._pending)):
            trial = self._queue.state(number, self._pending[number]).trial
            if trial is not None:
                found.append(trial)
                del self._pending[number]
        return found

    def wait(self) -> None:
        """Waits for a moment, while nothing but the plans of workers is left to do."""
        time.sleep(POLL_S)

    def dismiss(self) -> None:
        """Takes back the plans that no worker has begun."""
        self._queue.withdraw(self._pending)
        self._pending.clear()

    def _look(self) -> None:
        """Looks which workers are alive, every `LOOK_S` seconds, and settles the plans of those that died."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._alive, self._looked_s = self._fleet.workers(self._offer), now_s
        if not self._alive:
            self._queue.withdraw(self._pending)
        for number, plan in self._pending.items():
            state = self._queue.state(number, plan)
            if state.trial is None and state.worker is not None and state.worker not in self._alive:
                self._queue.settle(number, Outcome(status=Status.CRASHED, reason=DIED))


@contextmanager
def workers_of(
    study: Study, location: str | Path, target: Target | None, briefing: Briefing, objective: Objective
) -> Iterator[Workers]:
    """Offers a search to the workers of the database of its study, and gives those who answer.

    Args:
        study: the study of the search.
        location: its storage, as the user gave it. Only a database has workers.
        target: what a worker opens; None to search on this device alone.
        briefing: what is known of the workload on this device.
        objective: defines the score of a trial.
    """
    place = Place.of(location)
    if target is None or place.url is None:
        yield NoWorkers()
        return
    offer = SearchOffer(
        study=study.name,
        target=target.name,
        arguments=dict(target.arguments),
        overrides=dict(target.overrides),
        options=target.options,
        environment=briefing.environment,
        memory_bytes=briefing.budget.memory_bytes,
        objective=objective,
    )
    with Fleet.opened(place) as fleet, fleet.offering(offer) as number:
        yield FleetWorkers(study.queue(number), fleet, number)
