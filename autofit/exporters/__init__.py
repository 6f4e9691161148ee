"""Targets that a plan can be exported to. To add one: write its file, add its line here; or an entry point."""

from functools import cache

from autofit.core.errors import UsageError
from autofit.exporters.base import Exporter
from autofit.exporters.python.python import Python
from autofit.plugins import plugins

OWN: tuple[type[Exporter], ...] = (Python,)
"""Those of autofit itself."""


@cache
def members() -> tuple[Exporter, ...]:
    """Returns every exporter, in the order in which they are listed.

    Those of other packages are loaded at the first call.
    """
    return tuple(member() for member in (*OWN, *plugins("exporters", Exporter, OWN, "name")))


def by_name(name: str) -> Exporter:
    """Returns the exporter of that name.

    Raises:
        UsageError: no exporter has this name.
    """
    for member in members():
        if member.name == name:
            return member
    known = ", ".join(member.name for member in members())
    raise UsageError(f"found the export target {name!r}; expected one of {known}. Choose one of them.")
