"""Installed modules: which of the loaded modules belong to installed packages, and not to the user's code."""

import site
import sys
import sysconfig
from pathlib import Path


def installed_modules(target: str) -> list[str]:
    """Returns the loaded modules of installed packages and the standard library, in the order their imports ended.

    A package that is installed from a source folder (`pip install -e`) counts as the user's code, and so does the
    package that holds the target.

    Args:
        target: what the user asked to open, such as `package.module:function`.
    """
    package = target.partition(":")[0].partition(".")[0]
    folders = _folders()
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        top = name.partition(".")[0]
        if isinstance(file, str) and top not in ("__main__", "__mp_main__", package) and file.startswith(folders):
            found.append(name)
    return found


def _folders() -> tuple[str, ...]:
    """Returns the folders of installed packages and of the standard library, each with a slash at its end."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(f"{Path(folder)}/" for folder in found)
