"""Workers: other processes that run plans of a search, on devices that are equal to this one."""

from typing import Protocol

from autofit.core.plan import Plan
from autofit.core.trial import Trial


class Workers(Protocol):
    """Other processes that run plans of a search."""

    @property
    def pending(self) -> frozenset[str]:
        """Keys of the plans that were handed out and have no trial yet."""
        ...

    def free(self) -> bool:
        """Returns whether another plan may be handed out."""
        ...

    def hand_out(self, plan: Plan) -> None:
        """Gives a plan to the next free worker."""
        ...

    def collect(self) -> list[Trial]:
        """Returns the trials that have ended since the last call. A plan whose worker died has crashed."""
        ...

    def wait(self) -> None:
        """Waits for a moment, while nothing but the plans of workers is left to do."""
        ...

    def dismiss(self) -> None:
        """Takes back the plans that no worker has begun."""
        ...


class NoWorkers:
    """A search on this device alone."""

    pending: frozenset[str] = frozenset()

    def free(self) -> bool:
        """Returns False."""
        return False

    def hand_out(self, plan: Plan) -> None:
        """Is never called: no worker is free."""
        raise AssertionError("there are no workers")

    def collect(self) -> list[Trial]:
        """Returns nothing."""
        return []

    def wait(self) -> None:
        """Does nothing."""

    def dismiss(self) -> None:
        """Does nothing."""
