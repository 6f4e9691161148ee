"""The durable record of trials. Its parts are loaded when first asked for: a report reads studies without Optuna."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autofit.study.location import writing
    from autofit.study.study import Study

__all__ = ["Study", "writing"]

_HOMES = {"Study": "autofit.study.study", "writing": "autofit.study.location"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'autofit.study' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
