"""Kept gates: verdicts of gates that a study keeps, so that a later search of the same workload need not run them."""

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from autofit.core.briefing import Briefing
from autofit.core.gate_verdict import GateVerdicts
from autofit.search.request import DEFAULT_STUDY
from autofit.study import Study
from autofit.study.reading import read_notes

GATES = "gates"
"""Name of the note on a study that holds the verdicts of the gates on its workload."""


def kept_gates(study: str | Path | None) -> tuple[GateVerdicts, ...]:
    """Returns the verdicts that a storage keeps, of all its studies. What cannot be read is left out.

    Args:
        study: see `autofit.search.request.Request`.
    """
    found = []
    for note in read_notes(DEFAULT_STUDY if study is None else study, GATES):
        with suppress(ValidationError):  # by another version of autofit
            found.append(GateVerdicts.model_validate(note))
    return tuple(found)


def keep_gates(study: Study, briefing: Briefing) -> None:
    """Stores the verdicts of gates that ran in this search.

    Raises:
        StudyError: they cannot be written.
    """
    if briefing.verdicts is not None:
        study.note(GATES, briefing.verdicts.model_dump(mode="json"))
