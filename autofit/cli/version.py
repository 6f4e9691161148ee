"""`autofit --version --verbose`: the environment that a bug report needs. Loads torch, unlike `--version`."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from autofit.core.printable import one_line
from autofit.core.units import format_bytes

_PACKAGES = (
    "torch",
    "optuna",
    "pydantic",
    "numpy",
    "tqdm",
    "PyYAML",
    "scipy",
    "transformers",
    "accelerate",
    "lightning",
)
_VARIABLES = (
    "AUTOFIT_RUNTIME_DIR",
    "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
)
"""Environment variables that change what is measured. No other is printed: others may hold secrets."""
_LABEL = 12


def installed() -> str:
    """Returns the version of autofit that is installed."""
    try:
        return version("torch-autofit")
    except PackageNotFoundError:
        return "unknown (not installed)"


def environment() -> str:
    """Returns versions, device, driver, allocator settings and operating system, one fact a line."""
    facts = [("autofit", installed()), *_system(), *_packages(), *_devices(), *_variables()]
    return "\n".join(f"{name:{_LABEL}} {one_line(value)}".rstrip() for name, value in facts)


def _system() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    release = ""
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        release = platform.platform()
    yield "system", f"{release}, {platform.system()} {platform.release()} {platform.machine()}"


def _packages() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"


def _devices() -> Iterator[tuple[str, str]]:
    """Yields each kind of device that is present; an error of torch or of a driver is a fact, too."""
    try:
        import torch  # noqa: PLC0415  # slow to load

        from autofit import devices  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001  # what a bug report is about may be just this
        yield "device", f"torch cannot be loaded: {type(error).__name__}: {error}"
        return
    yield "built for", f"CUDA {torch.version.cuda or 'none'}, HIP {getattr(torch.version, 'hip', None) or 'none'}"
    yield "threads", f"{torch.get_num_threads()} of {os.cpu_count()} CPUs"
    for kind in devices.members():
        if not kind.is_available():
            continue
        try:
            device = devices.choose(kind.type)
            driver = "".join(f", {name} {text}" for name, text in device.versions().items())
            yield "device", f"{device.name()} ({device.type}), {format_bytes(device.capacity_bytes())}{driver}"
            account = device.account()
            if account is not None and account.settings:
                yield "allocator", account.settings
        except Exception as error:  # noqa: BLE001
            yield "device", f"{kind.type}: {type(error).__name__}: {error}"


def _variables() -> Iterator[tuple[str, str]]:
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]
