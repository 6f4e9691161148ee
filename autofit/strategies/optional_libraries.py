"""Optional libraries: whether one is installed, and how it is imported without its notes."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from autofit.core.wording import install_command


def missing(library: str) -> str | None:
    """Returns that a library is not installed and how to install it, or None. Its extra has its name."""
    found = importlib.util.find_spec(library) is not None
    return None if found else f"{library} is not installed: {install_command(library)}"


def unusable(library: str, error: Exception) -> str:
    """Returns that a library is installed but failed to import with `error`, and what to do."""
    return f"{library} cannot be imported ({error}): {install_command(library)}"


@contextmanager
def quietly() -> Iterator[None]:
    """Hides the warnings and notes that an import makes, such as those on kernels for other devices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
