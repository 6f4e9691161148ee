"""Targets that a plan can be exported to. To add one: write its file, add its line here."""

from autofit.core.errors import UsageError
from autofit.exporters.base import Exporter
from autofit.exporters.python.python import Python

MEMBERS: tuple[Exporter, ...] = (Python(),)
"""Every exporter, in the order in which they are listed."""


def by_name(name: str) -> Exporter:
    """Returns the exporter of that name.

    Raises:
        UsageError: no exporter has this name.
    """
    for member in MEMBERS:
        if member.name == name:
            return member
    known = ", ".join(member.name for member in MEMBERS)
    raise UsageError(f"found the export target {name!r}; expected one of {known}. Choose one of them.")
