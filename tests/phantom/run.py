"""Runs a Python with the phantom GPU.

    python tests/phantom/run.py --phantom DIR -- <python> arguments...

Checks that the phantom in DIR (made by build.py) is for that Python's torch, checks the PHANTOM_* variables, and
replaces itself by that Python with the phantom pre-loaded. Does not import torch. The variables are in README.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

MANIFEST = "phantom.json"
FAULTS = ("fail_allocation", "take_mib", "fail_after", "misreport_free_mib", "slow_us", "fail_gemm")
VARIABLES = {
    "PHANTOM_TOTAL_MIB": "81920",
    "PHANTOM_CONTEXT_MIB": "500",
    "PHANTOM_CAPABILITY": "8.0",
    "PHANTOM_NAME": "Phantom GPU",
    "PHANTOM_UNIFIED": "0",
    "PHANTOM_DEVICE": "",
    "PHANTOM_NVML": "absent",
    "PHANTOM_FAULT": "",
}
"""The variables and what holds where one is not set or empty."""

_SHAPES = {
    "PHANTOM_TOTAL_MIB": (r"\d{1,7}", "a whole number of MiB"),
    "PHANTOM_CONTEXT_MIB": (r"\d{1,7}", "a whole number of MiB"),
    "PHANTOM_CAPABILITY": (r"([5-9]|[1-9]\d)\.\d", "a compute capability such as 8.0"),
    "PHANTOM_UNIFIED": (r"[01]", "0 or 1"),
    "PHANTOM_NVML": (r"absent|per_process", "absent or per_process"),
    "PHANTOM_FAULT": (
        rf"(({'|'.join(FAULTS)}):\d{{1,9}}(,(?=.)|$))*",
        f"name:number, separated by commas, with the names {', '.join(FAULTS)}",
    ),
}
_WHERE_IS_TORCH = (
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
)


class RunError(Exception):
    """The phantom cannot be run so; the text is one line for a person."""


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables that put the phantom in `folder` in front of NVIDIA's libraries.

    The stubs are pre-loaded too: torch's own search path for its libraries goes before LD_LIBRARY_PATH, but a library
    that is loaded already is not searched for.
    """
    folder = folder.resolve()
    stubs = folder / "stubs"
    loadable = sorted(str(stub) for stub in stubs.iterdir() if stub.name != "libnvidia-ml.so.1")
    return {
        "LD_PRELOAD": " ".join([str(folder / "libphantom.so"), *loadable]),
        "LD_LIBRARY_PATH": str(stubs),
    }


def check_settings(variables: Mapping[str, str]) -> None:
    """Raises RunError if a PHANTOM_* variable is unknown or has a wrong value."""
    for name in sorted(name for name in variables if name.startswith("PHANTOM_")):
        if name not in VARIABLES:
            raise RunError(f"the variable {name} is not known; expected one of {', '.join(VARIABLES)}")
        value = variables[name]
        pattern, expected = _SHAPES.get(name, ("(?s).*", ""))
        if value and not re.fullmatch(pattern, value):
            raise RunError(f'{name} is "{value}"; expected {expected}')
    total, context = (
        int(variables.get(name) or VARIABLES[name]) for name in ("PHANTOM_TOTAL_MIB", "PHANTOM_CONTEXT_MIB")
    )
    if total <= context:
        raise RunError(f"PHANTOM_TOTAL_MIB is {total}; expected more than PHANTOM_CONTEXT_MIB, which is {context}")


def check_phantom(folder: Path, torch_folder: Path) -> None:
    """Raises RunError unless `folder` holds a phantom that was built for the torch in `torch_folder`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        built_for = str(manifest["torch"])
    except (OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{folder} holds no finished phantom ({type(error).__name__}); run tests/phantom/build.py"
        ) from error
    file = torch_folder / "version.py"
    version = (
        re.search(r"^__version__ = '([^']+)'", file.read_text(encoding="utf-8"), re.MULTILINE)
        if file.is_file()
        else None
    )
    found = version.group(1) if version else "unknown"
    if found != built_for:
        raise RunError(
            f"the phantom in {folder} is for torch {built_for}, but {torch_folder} holds torch {found}; build it again"
        )


def find_torch(python: str) -> Path:
    """Returns the folder of the torch package that this Python would import, without importing it.

    Raises:
        RunError: if the program is no Python, or has no torch.
    """
    if shutil.which(python) is None:
        raise RunError(f"{python} is no program; expected a Python after --")
    done = subprocess.run([python, "-c", _WHERE_IS_TORCH], capture_output=True, text=True, check=False)
    place = done.stdout.strip()
    if done.returncode != 0 or not place:
        raise RunError(f"{python} has no torch; expected a Python with a CUDA build of torch")
    return Path(place)


def main(arguments: list[str]) -> int:
    """Replaces this process by the command; returns 2, after one line on stderr, when that cannot be."""
    parser = argparse.ArgumentParser(description="Run a Python with the phantom GPU.")
    parser.add_argument("--phantom", type=Path, required=True, help="folder that build.py has written")
    parser.add_argument("command", nargs="+", metavar="-- python arguments", help="what to run")
    given = parser.parse_args(arguments)
    try:
        check_settings(os.environ)
        check_phantom(given.phantom, find_torch(given.command[0]))
    except RunError as error:
        sys.stderr.write(f"phantom: {error}\n")
        return 2
    return os.execvpe(given.command[0], given.command, {**os.environ, **environment(given.phantom)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
