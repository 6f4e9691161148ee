"""Whose code a class or function is: the user's, a library's, or that of torch, Python or autofit."""

import sys
from enum import Enum
from functools import lru_cache
from pathlib import PurePath

INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders in which libraries are installed."""


class Origin(Enum):
    """Whose code it is. This decides how far the walk follows it."""

    USER = "user"
    LIBRARY = "library"
    TORCH = "torch"
    STANDARD = "standard"
    AUTOFIT = "autofit"


def origin_of(module_name: object) -> Origin:
    """Returns whose code a module is, by its name. All code that was not installed is the user's."""
    return _origin(module_name) if isinstance(module_name, str) else Origin.USER


def class_origin(kind: type) -> Origin:
    """Returns whose code a class is."""
    return origin_of(getattr(kind, "__module__", None))


@lru_cache(maxsize=4096)
def _origin(module_name: str) -> Origin:
    package = module_name.partition(".")[0]
    if package == "__main__":  # a script or a notebook, although Python itself has a module of this name
        return Origin.USER
    if package in sys.stdlib_module_names:
        return Origin.STANDARD
    if package in ("torch", "autofit"):
        return Origin(package)
    place = getattr(sys.modules.get(module_name), "__file__", None)
    installed = place is not None and any(folder in PurePath(place).parts for folder in INSTALLED)
    return Origin.LIBRARY if installed else Origin.USER
