"""Sites: the lines of code that run an operator, and whose they are."""

import os
import sys
import sysconfig
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from autofit.tracing.cuda.device_spoofing import LIBRARIES

PATHS = tuple(
    sorted({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib", "stdlib", "platstdlib")}, key=len)
)
"""Folders of installed packages and of the standard library; inner ones come later."""
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
NOTEBOOKS = ("<ipython-input", "<stdin>")
"""How the names of "files" begin that a user types."""


class Owner(IntEnum):
    """Whose a line is."""

    HIDDEN = 0  # torch's, autofit's or generated
    LIBRARY = 1
    USER = 2


class Site(NamedTuple):
    """Where an operator was called.

    Attributes:
        user: innermost line of the user's code, such as "train.py:16"; "" if there is none.
        library: innermost line outside torch if it is not the user's, such as "transformers/masking_utils.py:307".
    """

    user: str = ""
    library: str = ""

    def __str__(self) -> str:
        return f"{self.user} ({self.library})" if self.user and self.library else self.user or self.library


NOWHERE = Site()


@cache
def owner_of(file: str) -> Owner:
    """Returns whose the code of a file is."""
    if file.startswith(LIBRARIES) or (file.startswith("<") and not file.startswith(NOTEBOOKS)):
        return Owner.HIDDEN
    installed = file.startswith(PATHS) or any(folder in file for folder in INSTALLED)
    return Owner.LIBRARY if installed else Owner.USER


@cache
def label(file: str) -> str:
    """Returns the name of a file as it is shown: relative to the folder that it is imported or run from."""
    for folder in (*reversed(PATHS), f"{Path.cwd()}{os.sep}"):
        if file.startswith(folder):
            return file.removeprefix(folder)
    return file


@cache
def _known(code: CodeType) -> tuple[Owner, str]:
    return owner_of(code.co_filename), label(code.co_filename)


def owner(frame: FrameType) -> Owner:
    """Returns whose the code of a frame is."""
    return _known(frame.f_code)[0]


def line_of(frame: FrameType) -> str:
    """Returns the line that a frame runs, such as "train.py:16"."""
    return f"{_known(frame.f_code)[1]}:{frame.f_lineno}"


def here() -> Site:
    """Returns the lines that are running in this thread."""
    frame: FrameType | None = sys._getframe(1)
    library = ""
    while frame is not None:
        whose, label = _known(frame.f_code)
        if whose is Owner.USER:
            return Site(f"{label}:{frame.f_lineno}", library)
        if whose is Owner.LIBRARY and not library:
            library = f"{label}:{frame.f_lineno}"
        frame = frame.f_back
    return Site("", library)
