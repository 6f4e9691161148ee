"""torchao: whether it is installed, and how it is imported without its notes."""

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

INSTALL = "pip install 'torch-autofit[torchao]'"


def missing() -> str | None:
    """Returns that torchao is not installed and how to install it, or None."""
    return None if importlib.util.find_spec("torchao") is not None else f"torchao is not installed: {INSTALL}"


def unusable(error: Exception) -> str:
    """Returns that torchao is installed but failed to import with `error`, and what to do."""
    return f"torchao cannot be imported ({error}): {INSTALL}"


@contextmanager
def quietly() -> Iterator[None]:
    """Hides the warnings and notes that an import of torchao makes, such as those on kernels for other devices."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
