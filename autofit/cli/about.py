"""What autofit says of itself: `completion`, `--version`, and the environment that a bug report needs."""

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autofit.cli.arguments import FINDINGS, KNOBS, TECHNIQUES
from autofit.core.printable import one_line

_FILES = ("FILE", "PLAN", "PLAN | STUDY", "TARGET", "SCRIPT", "A", "B")
"""Names of the arguments that take a file."""
_PACKAGES = ("torch", "optuna", "pydantic", "numpy", "transformers", "accelerate", "lightning")
_VARIABLES = (
    "AUTOFIT_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
)  # fmt: skip
"""Environment variables that change what is measured. No other is printed: others may hold secrets."""


def completion(given: argparse.Namespace) -> int:
    """Prints a shell completion script, which shtab makes from the parsers of the commands."""
    import shtab  # noqa: PLC0415  # `--version` loads none of these

    from autofit import cli  # noqa: PLC0415

    top = argparse.ArgumentParser(prog="autofit")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    groups = {"": top.add_subparsers()}
    for name, (about, _) in cli.COMMANDS.items():
        within, _, last = name.rpartition(" ")  # "nightly init" is the command "init" of "nightly"
        sub = groups[within].add_parser(last, help=about)
        if any(other.startswith(f"{name} ") for other in cli.COMMANDS):
            groups[name] = sub.add_subparsers()
        cli.fill(sub, name)
        for action in sub._actions:
            action.choices = _offered(action.dest) if action.choices is None else action.choices
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks
    print(shtab.complete(top, given.shell))
    return 0


def _offered(dest: str) -> list[str] | None:
    """Returns the values that are offered for a flag without fixed choices; None if none are known."""
    from autofit import exporters, searchers, trackers  # noqa: PLC0415

    family: Any = {"track": trackers, "searcher": searchers, "to": exporters}.get(dest)
    if family is not None:
        return [member.name for member in family.members()]
    known = {"strategies": TECHNIQUES, "without": TECHNIQUES, "pinned": [f"{name}=" for name in KNOBS]}
    known |= {"kinds": FINDINGS, "skip": FINDINGS, "fail_on": (*FINDINGS, "any")}
    return list(known[dest]) if dest in known else None


def installed() -> str:
    """Returns the version of autofit that is installed."""
    return dict(_versions("torch-autofit")).get("torch-autofit", "unknown (not installed)")


def environment() -> str:
    """Returns versions, devices, variables and operating system, one fact a line."""
    facts = [("autofit", installed()), ("python", f"{platform.python_version()}, {sys.executable}")]
    facts += [("system", platform.platform()), *_versions(*_PACKAGES), *_devices()]
    facts += [(name, os.environ[name]) for name in _VARIABLES if name in os.environ]
    return "\n".join(f"{name:12} {one_line(value)}".rstrip() for name, value in facts)


def _versions(*packages: str) -> Iterator[tuple[str, str]]:
    for name in packages:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def _devices() -> Iterator[tuple[str, str]]:
    """Yields each kind of device that is present; an error of torch or of a driver is a fact, too."""
    try:
        import torch  # noqa: F401, PLC0415  # slow to load, and may be what is broken

        from autofit import devices  # noqa: PLC0415

        kinds = [kind for kind in devices.members() if kind.is_available()]
    except Exception as error:  # noqa: BLE001
        yield "device", f"torch cannot be loaded: {type(error).__name__}: {error}"
        return
    for kind in kinds:
        try:
            device = devices.choose(kind.type)
            facts = [f"{device.name()} ({device.type})", *(f"{key} {text}" for key, text in device.versions().items())]
            yield "device", ", ".join(facts)
        except Exception as error:  # noqa: BLE001
            yield "device", f"{kind.type}: {type(error).__name__}: {error}"
