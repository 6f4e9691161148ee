"""Export targets. To add one, write its file and add a line here, or add an entry point in another package."""

from functools import cache

from autofit.core.errors import UsageError
from autofit.exporters.accelerate import Accelerate
from autofit.exporters.axolotl import Axolotl
from autofit.exporters.base import Exporter
from autofit.exporters.deepspeed import DeepSpeed
from autofit.exporters.huggingface import HuggingFace
from autofit.exporters.lightning import Lightning
from autofit.exporters.python import Python
from autofit.exporters.torchtitan import Torchtitan
from autofit.plugins import plugins

BUILT_IN: tuple[type[Exporter], ...] = (Python, HuggingFace, Accelerate, Lightning, DeepSpeed, Torchtitan, Axolotl)
"""The exporters of autofit itself."""


@cache
def members() -> tuple[Exporter, ...]:
    """Returns every exporter, in the order in which they are listed.

    Exporters of other packages are loaded on the first call.
    """
    return tuple(member() for member in (*BUILT_IN, *plugins("exporters", Exporter, BUILT_IN, "name")))


def by_name(name: str) -> Exporter:
    """Returns the exporter of that name.

    Raises:
        UsageError: no exporter has this name.
    """
    for member in members():
        if member.name == name:
            return member
    known = ", ".join(member.name for member in members())
    raise UsageError(f"found the export target {name!r}; expected one of {known}. Choose one of these.")
