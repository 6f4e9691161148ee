"""Files that commands write. They never replace a file that autofit did not write, and never lose a result."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.errors import PlanFileError, UsageError
from autofit.files import unwritable


def check_output(path: Path, check: Callable[..., Path] = planfile.check_replaceable, *, force: bool) -> None:
    """Rejects, before any work begins, an output that cannot be written, or that `check` does not replace.

    Raises:
        UsageError: it is one of these.
    """
    try:
        folder = Path(os.path.realpath(path)).parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"{path} cannot be written: {folder} is not a writable directory. Choose another path.")
        check(path, force=force)
    except OSError as error:
        raise unwritable(path, error) from None


def save_plan(answer: Answer, output: str, *, force: bool) -> str:
    """Writes the plan file. Returns "", or an error that also says where the plan was saved instead."""
    try:
        planfile.save(answer, output, force=force)
        return ""
    except PlanFileError as error:
        unsaved = error
    try:
        path = Path(tempfile.mkdtemp(prefix="autofit-")) / "autofit.yaml"
        planfile.save(answer, path)
    except (OSError, PlanFileError):
        study = f"the study {answer.study}" if answer.study else "the study"
        return f"{unsaved} The trials are in {study}: run the same command again to get the plan from them."
    return f"{unsaved} The plan was written to {path} instead: `autofit show {path}`."
