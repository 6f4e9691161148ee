"""Forked state: gives a process that the nursery forked what a fresh interpreter would have had of its own.

Imports the standard library only. Modules that are not loaded are left alone.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from autofit.linux_process import allocator_option

_MALLOC_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
"""Variables that glibc reads when a process starts, and the option of `mallopt` that does the same later."""
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""Variables in which OpenBLAS looks for its number of threads, in this order."""
_BLAS_SETTERS = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)


def can_set(variables: Mapping[str, str]) -> bool:
    """Returns whether variables that a process reads when it starts can also be set in a forked process."""
    return not variables or (variables.keys() <= _MALLOC_OPTIONS.keys() and allocator_option() is not None)


def set_variables(variables: Mapping[str, str]) -> None:
    """Sets variables in this process and has the allocator follow them."""
    os.environ.update(variables)
    option = allocator_option()
    for name, value in variables.items():
        if name in _MALLOC_OPTIONS and option is not None:
            option(_MALLOC_OPTIONS[name], int(value))


def restore(variables: Mapping[str, str | None]) -> None:
    """Sets variables to their earlier values; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def renew() -> None:
    """Draws new random seeds and gives OpenBLAS the threads that the environment asks for.

    Python's own `random` draws a new seed at each fork by itself.
    """
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    if numpy_random is not None:
        numpy_random.seed()
    if torch is not None:
        torch.default_generator.seed()  # the devices' generators begin with a fixed seed in every process
    count = blas_threads()
    for setter in _blas_setters():
        setter(count)


def blas_threads() -> int:
    """Returns the number of threads with which OpenBLAS starts in a fresh interpreter."""
    for name in _BLAS_THREADS:
        with suppress(ValueError):
            if (asked := int(os.environ.get(name, ""))) > 0:
                return asked
    return len(os.sched_getaffinity(0))


def _blas_setters() -> Iterator[Callable[[int], None]]:
    """Yields the function that sets the number of threads of each loaded copy of OpenBLAS."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        found = {line.rstrip("\n").partition("/")[2] for line in file if "openblas" in line}
    for path in sorted(found):
        with suppress(OSError):
            library = ctypes.CDLL(f"/{path}")
            for name in _BLAS_SETTERS:
                if (setter := getattr(library, name, None)) is not None:
                    yield setter
