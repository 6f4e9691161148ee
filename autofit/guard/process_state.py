"""The state of the process: flags of torch and Python, random generators, and restoring them."""

import gc
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import eq
from typing import Any

import numpy as np
import torch

from autofit.core.uninterrupted import uninterrupted
from autofit.guard.object_state import PROCESS, Piece, ValuePiece


class Flag(Piece):
    """One process-wide setting. A value that is a dictionary is compared key by key."""

    def __init__(self, name: str, read: Callable[[], Any], write: Callable[[Any], object]) -> None:
        super().__init__(name, read, write, eq, PROCESS)

    def differences(self) -> Iterator[str]:
        """Yields the name if the setting differs, or those of its keys."""
        now, kept, missing = self.read(), self._kept, object()
        if now != kept and isinstance(kept, dict):
            keys = (key for key in {**kept, **now} if kept.get(key, missing) != now.get(key, missing))
            return (f"{self.name}.{key}" for key in keys)
        return iter([self.name] if now != kept else [])


def process_pieces() -> list[Piece]:
    """Returns a snapshot of the global random generators and the process-wide flags. Does not initialise a device."""
    pieces: list[Piece] = [*global_rngs(), *process_flags()]
    for piece in pieces:
        piece.save()
    return pieces


# General before specific: a specific setting of "none" inherits from the general one.
_PRECISION_KEYS = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)


def process_flags() -> list[Flag]:
    """Returns every flag that can be read in this process, signal handlers last."""
    return [
        Flag("flags.fp32_precision", read_precision, write_precision),
        *_torch_flags(),
        *_autocast_flags(),
        *_compiler_flags(),
        *_device_flags(),
        *_python_flags(),
        *_signal_flags(),
    ]


@uninterrupted()
def read_precision() -> dict[str, object]:
    """Returns the float32 precision settings, each as it was set and not as inherited.

    torch's older and newer interfaces conflict. After the newer one is used, reading through the older one may raise,
    and an inherited setting reads like an explicit one. The newer settings are therefore read from general to specific
    and cleared, then the older ones are read, then all are restored.
    """
    explicit: dict[tuple[str, str], str] = {}
    try:
        for key in _PRECISION_KEYS:
            explicit[key] = torch._C._get_fp32_precision_getter(*key)
            torch._C._set_fp32_precision_setter(*key, "none")
        matmul = torch.get_float32_matmul_precision()
        try:
            cudnn_tf32 = torch._C._get_cudnn_allow_tf32()
        except RuntimeError:  # raised if it is on while the newer settings, cleared above, are off
            cudnn_tf32 = True
    finally:
        for key, value in explicit.items():
            torch._C._set_fp32_precision_setter(*key, value)
    return {"matmul": matmul, "cudnn_tf32": cudnn_tf32} | {".".join(key): explicit[key] for key in explicit}


@uninterrupted()
def write_precision(kept: dict[str, Any]) -> None:
    """Writes what `read_precision` returned. The older interface comes first, since it changes the newer settings."""
    torch.set_float32_matmul_precision(kept["matmul"])
    torch._C._set_cudnn_allow_tf32(kept["cudnn_tf32"])
    for key in _PRECISION_KEYS:
        torch._C._set_fp32_precision_setter(*key, kept[".".join(key)])


def _torch_flags() -> Iterator[Flag]:
    """Yields the flags of torch and its back ends."""
    backends, cuda, matmul = torch.backends, torch.backends.cuda, torch.backends.cuda.matmul
    attributes: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
        ("flags.cudnn", backends.cudnn, ("enabled", "benchmark", "benchmark_limit", "deterministic")),
        ("flags.mkldnn", backends.mkldnn, ("enabled", "deterministic")),
        ("flags.cuda.matmul", matmul, ("allow_fp16_accumulation",)),
        ("flags", torch.utils.deterministic, ("fill_uninitialized_memory",)),
    )
    for name, owner, names in attributes:
        for each in names:
            yield Flag(f"{name}.{each}", partial(getattr, owner, each), partial(setattr, owner, each))
    for dtype in ("fp16", "bf16"):
        yield _reduction_flag(f"allow_{dtype}_reduced_precision_reduction")
    for kind in ("flash", "mem_efficient", "math", "cudnn"):
        yield Flag(f"flags.sdp.{kind}", getattr(cuda, f"{kind}_sdp_enabled"), getattr(cuda, f"enable_{kind}_sdp"))
    allowed, allow = cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp
    yield Flag("flags.sdp.reduced_math", allowed, allow)
    yield Flag(
        "flags.deterministic_algorithms",
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        lambda kept: torch.use_deterministic_algorithms(kept[0], warn_only=kept[1]),
    )
    yield Flag("flags.default_dtype", torch.get_default_dtype, torch.set_default_dtype)
    # Without a default device this reads as "cpu". Setting "cpu" would slow down every later call.
    set_device = torch.set_default_device
    yield Flag("flags.default_device", torch.get_default_device, lambda d: set_device(None if d.type == "cpu" else d))
    yield Flag("flags.grad_enabled", torch.is_grad_enabled, torch.set_grad_enabled)
    yield Flag(
        "flags.anomaly",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda kept: torch.autograd.set_detect_anomaly(*kept),
    )
    yield Flag("flags.num_threads", torch.get_num_threads, torch.set_num_threads)


def _reduction_flag(attribute: str) -> Flag:
    """Returns the flag of a reduced-precision reduction, with its split-k part if torch has one."""
    matmul: Any = torch.backends.cuda.matmul

    def read() -> tuple[bool, bool]:
        return getattr(matmul, attribute), getattr(matmul, f"{attribute}_split_k", True)

    def write(kept: tuple[bool, bool]) -> None:
        setattr(matmul, attribute, kept[0] if kept[1] else kept)

    return Flag(f"flags.cuda.matmul.{attribute}", read, write)


def _autocast_flags() -> Iterator[Flag]:
    """Yields autocast's state for each kind of device, and whether casts are cached."""

    def read(kind: str) -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def write(kind: str, kept: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(kind, kept[0])
        torch.set_autocast_dtype(kind, kept[1])

    for kind in ("cpu", *accelerator_kinds()):
        yield Flag(f"flags.autocast.{kind}", partial(read, kind), partial(write, kind))
    yield Flag("flags.autocast.cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)


def _compiler_flags() -> Iterator[Flag]:
    """Yields the configuration of each compiler that is imported, as one flag."""

    def write(config: Any, kept: dict[str, object]) -> None:
        now = config.get_config_copy()
        config.load_config({key: value for key, value in kept.items() if now.get(key) != value})

    for name in ("_dynamo.config", "_inductor.config"):
        if (config := sys.modules.get(f"torch.{name}")) is not None:
            yield Flag(f"flags.{name}", config.get_config_copy, partial(write, config))


def _device_flags() -> Iterator[Flag]:
    """Yields the current device and each device's memory fraction, if an accelerator is running."""
    accelerator = running_accelerator()
    if hasattr(accelerator, "set_device"):
        yield Flag("flags.current_device", accelerator.current_device, accelerator.set_device)
    memory: Any = getattr(accelerator, "memory", None)
    if not hasattr(memory, "get_per_process_memory_fraction"):
        return

    def read(device: int) -> float:
        # The allocator stores bytes, so a restored fraction may differ in the last digits when it is read again.
        # Without a limit, cudaMallocAsync reports a number far above 1, which cannot be written.
        return round(min(float(memory.get_per_process_memory_fraction(device)), 1.0), 9)

    for device in range(accelerator.device_count()):
        write = partial(memory.set_per_process_memory_fraction, device=device)
        yield Flag(f"flags.memory_fraction[{device}]", partial(read, device), write)


def _python_flags() -> Iterator[Flag]:
    """Yields the environment, working directory, logging, warnings, recursion limit and garbage collection."""
    root = logging.getLogger()

    def write_environment(kept: dict[str, str]) -> None:
        for key in [key for key in os.environ if key not in kept]:
            del os.environ[key]
        os.environ.update({key: value for key, value in kept.items() if os.environ.get(key) != value})

    def working_directory() -> str | None:
        with suppress(FileNotFoundError):  # it was deleted
            return os.getcwd()
        return None

    def write_filters(kept: tuple[Any, ...]) -> None:
        warnings.filters[:] = kept  # type: ignore[index]  # typed as a Sequence, is a list
        # Leaving this block is the public way to notify the warnings module that its filters changed.
        with warnings.catch_warnings():
            pass

    yield Flag("environ", lambda: dict(os.environ), write_environment)
    yield Flag("cwd", working_directory, lambda kept: None if kept is None else os.chdir(kept))
    yield Flag("logging.root.level", lambda: root.level, root.setLevel)
    yield Flag("logging.disable", lambda: root.manager.disable, logging.disable)
    yield Flag("warnings.filters", lambda: tuple(warnings.filters), write_filters)
    yield Flag("recursion_limit", sys.getrecursionlimit, sys.setrecursionlimit)  # torch's compiler raises it
    yield Flag("gc.enabled", gc.isenabled, lambda kept: gc.enable() if kept else gc.disable())


def _signal_flags() -> Iterator[Flag]:
    """Yields the signal handlers. Only the main thread can set them."""

    def write(number: signal.Signals, kept: Any) -> None:
        if kept is not None:  # a handler that was not installed from Python reads as None and cannot be written
            signal.signal(number, kept)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            yield Flag(f"signal.{number.name}", partial(signal.getsignal, number), partial(write, number))


def global_rngs() -> list[ValuePiece]:
    """Returns the global random generators of Python, numpy, torch and each running device."""
    return [ValuePiece(f"rng.{name}", read, write, PROCESS) for name, read, write in generators()]


def generators() -> list[tuple[str, Callable[[], object], Callable[[Any], object]]]:
    """Returns the name of each of these generators, and what reads and writes its state. None waits for a device."""
    rngs: list[tuple[str, Callable[[], object], Callable[[Any], object]]] = [
        ("python", random.getstate, random.setstate),
        ("torch", torch.get_rng_state, torch.set_rng_state),
        ("numpy", partial(np.random.get_state, legacy=False), np.random.set_state),
    ]
    if (accelerator := running_accelerator()) is not None:
        each = "_all" if hasattr(accelerator, "get_rng_state_all") else ""
        read, write = getattr(accelerator, f"get_rng_state{each}"), getattr(accelerator, f"set_rng_state{each}")
        rngs.append((accelerator_kinds()[0], read, write))
    return rngs


def running_accelerator() -> Any:
    """Returns torch's module of the accelerator if this process has initialised it, else None."""
    for kind in accelerator_kinds():
        module = torch.get_device_module(kind)
        # A back end without `is_initialized` (Metal) has nothing to initialise.
        if module.is_available() and getattr(module, "is_initialized", module.is_available)():
            return module
    return None


def accelerator_kinds() -> list[str]:
    """Returns the accelerator type that this torch was built for, if any."""
    device = torch.accelerator.current_accelerator()
    return [] if device is None else [device.type]
