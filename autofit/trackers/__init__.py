"""Listeners of a search. To add a tracker, write its file and add a line here, or add an entry point elsewhere.

Importing this package imports none of the packages that trackers need.
"""

from functools import cache

from autofit.core.errors import UsageError
from autofit.plugins import plugins
from autofit.trackers.base import Tracker
from autofit.trackers.mlflow import Mlflow
from autofit.trackers.tensorboard import TensorBoard
from autofit.trackers.wandb import Wandb

BUILT_IN: tuple[type[Tracker], ...] = (TensorBoard, Mlflow, Wandb)
"""The trackers of autofit itself."""


@cache
def members() -> tuple[type[Tracker], ...]:
    """Returns every tracker.

    Trackers of other packages are loaded on the first call.
    """
    return (*BUILT_IN, *plugins("trackers", Tracker, BUILT_IN, "name"))


def make(given: str) -> Tracker:
    """Returns the tracker that `given` names: "NAME" or "NAME:PLACE".

    Raises:
        UsageError: no tracker has this name, or the package that it needs cannot be imported.
    """
    name, _, where = given.partition(":")
    for member in members():
        if member.name == name:
            return member.make(where)
    known = ", ".join(f"{member.name}[:{member.place}]" for member in members())
    raise UsageError(f"found the tracker {given!r}; expected one of {known}. Choose one of these.")
