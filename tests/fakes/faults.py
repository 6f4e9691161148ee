"""Faults for a fake bench: outcomes instead of a run."""

from collections.abc import Callable

from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose


def always(status: Status, reason: str = "injected") -> Callable[[Purpose], Outcome | None]:
    """Returns a fault that happens each time."""
    return lambda purpose: Outcome(status=status, reason=reason)


def during(purpose: Purpose, status: Status, reason: str = "injected") -> Callable[[Purpose], Outcome | None]:
    """Returns a fault that happens in runs of one purpose."""
    return lambda now: Outcome(status=status, reason=reason) if now is purpose else None
