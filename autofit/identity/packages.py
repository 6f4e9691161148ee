"""Installed packages: which code belongs to one, and its name and version in a signature."""

import functools
import sys
import sysconfig
from pathlib import Path

import torch

_INSTALLED = tuple(
    {str(Path(path)) + "/" for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    | {f"{Path(torch.__file__).parent}/", f"{Path(__file__).parents[1]}/"}
)


@functools.lru_cache(4096)
def installed(filename: str) -> bool:
    """Returns whether a source file belongs to Python, torch, this package or another installed one."""
    return filename.startswith((*_INSTALLED, "<frozen")) or "site-packages/" in filename or "dist-packages/" in filename


def of_package(module_name: str | None) -> bool:
    """Returns whether a module belongs to an installed package or is not loaded."""
    if module_name == "__main__" or module_name not in sys.modules:
        return False
    found = getattr(sys.modules[module_name], "__file__", None)
    return found is None or installed(found)


def named(module_name: str | None, name: str = "") -> str:
    """Returns the name of an object of an installed package, with the package's version if it has one."""
    version = getattr(sys.modules.get((module_name or "").partition(".")[0]), "__version__", "")
    return f"{module_name}.{name} {version if isinstance(version, str) else ''}"
