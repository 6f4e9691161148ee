"""Following: opens the listeners of a search before it begins, and ends them after it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from autofit import trackers
from autofit.core.errors import UsageError
from autofit.search.evidence import SearchResult
from autofit.search.request import Listen
from autofit.trackers.background import PATIENCE_RATIO, PATIENCE_S, Background
from autofit.trackers.base import Tracker
from autofit.trackers.listener import FailSoft, Listener, Warn, warn_user


def no_documents(result: SearchResult) -> Mapping[str, str]:
    """Returns no documents."""
    return {}


@contextmanager
def following(
    given: Sequence[Listener | str],
    *,
    warn: Warn = warn_user,
    attach: Callable[[SearchResult], Mapping[str, str]] = no_documents,
    time_s: float | None = None,
) -> Iterator[list[Listen]]:
    """Gives the listeners of a search. None of them can end it.

    Args:
        given: callables, and names of trackers as "NAME" or "NAME:PLACE".
        warn: shows a failure of a listener; called at most once for each.
        attach: makes further documents for trackers from the result, by file name.
        time_s: time budget of the search in seconds; None without one.

    Raises:
        UsageError: an element is neither a callable nor the name of a tracker, or the package of a tracker cannot be
            imported.
    """
    found = [_made(each) for each in ([given] if isinstance(given, str) else given)]  # all, before any begins
    patience_s = PATIENCE_S if time_s is None else min(PATIENCE_S, PATIENCE_RATIO * time_s)
    listeners = [
        Background(each, warn, attach, patience_s) if isinstance(each, Tracker) else FailSoft(each, warn)
        for each in found
    ]
    try:
        yield [*listeners]
    finally:
        for listener in listeners:
            listener.close()


def _made(given: Listener | str) -> Listener | Tracker:
    if isinstance(given, str):
        return trackers.make(given)
    if callable(given):
        return given
    raise UsageError(
        f"found {given!r} among the listeners; expected a callable, or the name of a tracker such as 'tensorboard'."
    )
