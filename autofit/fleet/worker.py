"""Worker: runs the plans of the searches that are offered in a database, one search after the other."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from autofit.core.errors import AutofitError, Busy, DevicePoisoned, RestoreError, StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.core.wording import describe_outcome, describe_plan
from autofit.probing.child_request import Target
from autofit.search.bench import Bench
from autofit.study.fleet import Fleet, OpenOffer
from autofit.study.location import Place
from autofit.study.offer import SearchOffer
from autofit.study.plan_queue import PlanQueue, QueuedPlan

SOON_S, LATER_S = 0.05, 0.2
"""Seconds between two looks for a plan: right after one was run, and at most. The time doubles while there is none."""
OFFERS_S = 1.0
"""Seconds between two looks at the open offers."""
RECONNECT_S = 5.0
"""Seconds until a database that does not answer is tried again."""
MOST_POISONED = 2
"""Number of plans in a row that leave the device poisoned after which a worker gives up."""

Opened = Callable[[Target], AbstractContextManager[Bench]]
"""Opens what an offer names, on the device of the worker."""


@dataclass(slots=True)
class WorkDone:
    """What a worker did.

    Attributes:
        plans: number of plans that it ran and whose outcome counts.
        searches: number of searches for which it ran plans.
        nights: number of nights in which it took part.
        refused: reason for each offer that it did not take, by the number of the offer.
    """

    plans: int = 0
    searches: int = 0
    nights: int = 0
    refused: dict[int, str] = field(default_factory=dict)


class SearchWorker:
    """Runs the plans of the searches that are offered in a database.

    Args:
        place: the database.
        device: the device to use; None for the best that is available.
        opened: opens a target.
        say: called with a text for each thing that happens.
        night: takes part in the night of a jobs file; None for a worker of searches alone.
    """

    def __init__(
        self,
        place: Place,
        device: str | None,
        opened: Opened,
        say: Callable[[str], None] = lambda text: None,
        night: Callable[[str], None] | None = None,
    ) -> None:
        self.account = WorkDone()
        self._place, self._device, self._opened, self._say = place, device, opened, say
        self._poisoned = 0
        self._night, self._nights_seen = night, set[int]()

    def work(self, idle_s: float) -> WorkDone:
        """Works until nothing was offered for `idle_s` seconds, and returns what was done.

        Raises:
            StudyError: the database cannot be opened when the worker begins. If it does not answer later, the worker
                waits for it.
            DevicePoisoned: the device answers every call with an error.
        """
        busy_s = time.monotonic()
        with Fleet.opened(self._place) as fleet:
            while time.monotonic() - busy_s < idle_s:
                offer = self._next(fleet)
                if (offer is not None and self._answer(fleet, offer)) or self._take_part(fleet):
                    busy_s = time.monotonic()
                else:
                    time.sleep(min(OFFERS_S, idle_s))
        return self.account

    def _next(self, fleet: Fleet) -> OpenOffer | None:
        """Returns the oldest open offer that was not refused."""
        try:
            return next((each for each in fleet.offers() if each.number not in self.account.refused), None)
        except StudyError as error:
            self._say(f"{error} It is tried again.")
            time.sleep(RECONNECT_S)
            return None

    def _take_part(self, fleet: Fleet) -> bool:
        """Takes part in the oldest night that this worker has not seen. Returns whether there was one."""
        if self._night is None:
            return False
        try:
            new = {number: jobs for number, jobs in fleet.nights().items() if number not in self._nights_seen}
        except StudyError:  # said by the next look at the offers
            return False
        if not new:
            return False
        number = min(new)
        self._nights_seen.add(number)
        self._say(f"taking part in the night of {new[number]}")
        try:
            self._night(new[number])
        except AutofitError as error:
            self._refuse(number, str(error))
            return False
        self.account.nights += 1
        return True

    def _answer(self, fleet: Fleet, found: OpenOffer) -> bool:
        """Runs plans of an offer until it is closed. Returns whether the offer was taken."""
        offer = found.offer
        if offer is None:
            self._refuse(found.number, "it comes from another version of autofit")
            return False
        self._say(f"looking at {offer.target}")
        try:
            with self._opened(_target(offer, self._device)) as bench:
                differences = offer.environment.differences(bench.briefing.environment)
                if differences:
                    self._refuse(found.number, f"the search is in another environment: {'; '.join(differences)}")
                    return False
                self._run_plans(fleet, found.number, offer, bench)
        except (DevicePoisoned, RestoreError):
            raise
        except (StudyError, Busy) as error:
            self._say(f"{error} It is tried again.")
            time.sleep(RECONNECT_S)
            return False
        except AutofitError as error:
            self._refuse(found.number, str(error))
            return False
        return True

    def _run_plans(self, fleet: Fleet, number: int, offer: SearchOffer, bench: Bench) -> None:
        """Runs plans until the offer is closed.

        Raises:
            StudyError: the database does not answer.
            DevicePoisoned: the device answers every call with an error.
        """
        self.account.searches += 1
        self._say(f"running plans of {offer.target} on {bench.briefing.environment.device_name}")
        wait_s, looked_s = SOON_S, time.monotonic()
        with (
            PlanQueue.joined(self._place, offer, number, bench.briefing.environment) as queue,
            fleet.working(number) as worker,
        ):
            while True:
                taken = queue.take(worker)
                if taken is not None:
                    self._run(taken, queue, bench, offer.objective)
                    wait_s = SOON_S
                    continue
                if time.monotonic() - looked_s >= OFFERS_S:
                    looked_s = time.monotonic()
                    # A worker that was slow to answer is treated as dead.
                    if not {number, worker} <= fleet.alive():
                        break
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, LATER_S)
        self._say(f"{offer.target}: the search has ended")

    def _run(self, taken: QueuedPlan, queue: PlanQueue, bench: Bench, objective: Objective) -> None:
        """Runs a plan and records its outcome, also if it is interrupted."""
        outcome = Outcome(status=Status.INTERRUPTED, reason="the worker was stopped")
        try:
            outcome = bench.evaluate(taken.plan, Purpose.PROBE)
        finally:
            counts = queue.settle(taken.number, outcome)
        self.account.plans += counts
        plan = describe_plan(taken.plan, bench.briefing.space.baseline)
        elsewhere = "" if counts else "; it was given to another process"
        self._say(f"{plan}: {describe_outcome(outcome, objective.unit)}{elsewhere}")
        self._poisoned = self._poisoned + 1 if outcome.status is Status.POISONED else 0
        if self._poisoned >= MOST_POISONED:
            raise DevicePoisoned(
                f"the device stays poisoned in fresh processes: {outcome.reason}. Check the driver's log, and reset "
                "the device: the study keeps all finished trials."
            )

    def _refuse(self, number: int, reason: str) -> None:
        self.account.refused[number] = reason
        self._say(f"not taken: {reason}")


def _target(offer: SearchOffer, device: str | None) -> Target:
    """Returns what a child opens for an offer. Its budget is that of the search, in bytes."""
    return Target(
        name=offer.target,
        arguments=offer.arguments,
        overrides=offer.overrides,
        device=device,
        options=offer.options.model_copy(update={"memory_budget": offer.memory_bytes}),
    )
