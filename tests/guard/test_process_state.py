"""The state of the process: every flag and generator is read, written and restored."""

import gc
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.config as dynamo
from torch import nn

from autofit import devices
from autofit.core.uninterrupted import FROM_OUTSIDE
from autofit.guard import Guard, process_state
from autofit.guard.process_state import global_rngs, running_accelerator
from tests.devices.fake_torch import Card, install


def _set_environment() -> None:
    os.environ["AUTOFIT_GUARD_TEST"] = "1"


FLAGS: dict[str, tuple[Callable[[], Any], Callable[[], object]]] = {
    "flags.cudnn.benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        lambda: setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark),
    ),
    "flags.cudnn.deterministic": (
        lambda: torch.backends.cudnn.deterministic,
        lambda: setattr(torch.backends.cudnn, "deterministic", not torch.backends.cudnn.deterministic),
    ),
    "flags.cudnn.enabled": (
        lambda: torch.backends.cudnn.enabled,
        lambda: setattr(torch.backends.cudnn, "enabled", False),
    ),
    "flags.fp32_precision.cudnn_tf32": (
        lambda: torch.backends.cudnn.allow_tf32,
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    ),
    "flags.fp32_precision.matmul": (
        torch.get_float32_matmul_precision,
        lambda: torch.set_float32_matmul_precision("high"),
    ),
    "flags.fp32_precision.cuda.matmul": (
        lambda: torch.backends.cuda.matmul.fp32_precision,
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ),
    "flags.fp32_precision.generic.all": (
        lambda: torch.backends.fp32_precision,  # type: ignore[attr-defined]  # torch has no type for it
        lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    ),
    "flags.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ),
    "flags.cuda.matmul.allow_fp16_accumulation": (
        lambda: torch.backends.cuda.matmul.allow_fp16_accumulation,
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    ),
    "flags.sdp.flash": (
        torch.backends.cuda.flash_sdp_enabled,
        lambda: torch.backends.cuda.enable_flash_sdp(False),
    ),
    "flags.sdp.math": (
        torch.backends.cuda.math_sdp_enabled,
        lambda: torch.backends.cuda.enable_math_sdp(False),
    ),
    "flags.deterministic_algorithms": (
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "flags.default_dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "flags.default_device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "flags.grad_enabled": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "flags.anomaly": (torch.is_anomaly_enabled, lambda: torch.autograd.set_detect_anomaly(True)),
    "flags.autocast.cpu": (
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        lambda: [torch.set_autocast_enabled("cpu", True), torch.set_autocast_dtype("cpu", torch.float16)],  # type: ignore[func-returns-value]  # two calls in turn
    ),
    "flags.autocast.cache": (
        torch.is_autocast_cache_enabled,
        lambda: torch.set_autocast_cache_enabled(False),
    ),
    "flags.num_threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "environ.AUTOFIT_GUARD_TEST": (lambda: dict(os.environ), _set_environment),
    "cwd": (os.getcwd, lambda: os.chdir("/")),
    "logging.root.level": (
        lambda: logging.getLogger().level,
        lambda: logging.getLogger().setLevel(logging.getLogger().level + 1),
    ),
    "warnings.filters": (
        lambda: list(warnings.filters),
        lambda: warnings.simplefilter("ignore", ImportWarning),
    ),
    "recursion_limit": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1000)),
    "gc.enabled": (gc.isenabled, gc.disable),
    "signal.SIGTERM": (
        lambda: signal.getsignal(signal.SIGTERM),
        lambda: signal.signal(signal.SIGTERM, lambda *a: None),
    ),
    "signal.SIGINT": (
        lambda: signal.getsignal(signal.SIGINT),
        lambda: signal.signal(signal.SIGINT, lambda *a: None),
    ),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.fault("F30")
def test_each_process_wide_flag_is_named_and_put_back(name: str) -> None:
    read, change = FLAGS[name]
    before = read()
    with Guard(nn.Linear(1, 1)) as guard:
        change()
        named = guard.differences()
    assert read() == before
    assert name in named


BACKENDS: Any = torch.backends
"""Typed as anything: torch has no types for its precision settings."""


@pytest.mark.fault("F30")
def test_compiler_settings_come_back_if_the_compiler_was_imported() -> None:
    before = dynamo.recompile_limit
    with Guard(nn.Linear(1, 1)) as guard:
        dynamo.recompile_limit = before + 1
        assert guard.differences() == ["flags._dynamo.config.recompile_limit"]
    assert dynamo.recompile_limit == before


def _observe_precision() -> list[object]:
    seen = []
    reads: list[Callable[[], object]] = [
        torch.get_float32_matmul_precision,
        lambda: BACKENDS.cuda.matmul.allow_tf32,
        lambda: BACKENDS.cudnn.allow_tf32,
        lambda: BACKENDS.fp32_precision,
        lambda: BACKENDS.cuda.matmul.fp32_precision,
        lambda: BACKENDS.cudnn.fp32_precision,
        lambda: BACKENDS.cudnn.conv.fp32_precision,
        lambda: BACKENDS.mkldnn.matmul.fp32_precision,
    ]
    for read in reads:
        try:
            seen.append(read())
        except RuntimeError:
            seen.append("unreadable")
    return seen


PRECISION_CHANGES: list[Callable[[], object]] = [
    lambda: torch.set_float32_matmul_precision("medium"),
    lambda: torch.set_float32_matmul_precision("highest"),
    lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "none"),
    lambda: setattr(BACKENDS.cudnn.conv, "fp32_precision", "ieee"),
    lambda: setattr(torch.backends, "fp32_precision", "tf32"),
]


@pytest.mark.parametrize("user", range(-1, len(PRECISION_CHANGES)))
@pytest.mark.fault("F30")
def test_mixed_precision_interfaces_come_back_from_any_state(user: int) -> None:
    with Guard(nn.Linear(1, 1)):  # puts the process back for the other tests
        if user >= 0:
            torch.set_float32_matmul_precision("high")
            PRECISION_CHANGES[user]()
        before = _observe_precision()
        for change in PRECISION_CHANGES:
            with Guard(nn.Linear(1, 1)):
                change()
            assert _observe_precision() == before
        # An inherited setting is still an inherited one: it follows when the general setting changes.
        if user == len(PRECISION_CHANGES) - 1:
            BACKENDS.fp32_precision = "ieee"
            assert BACKENDS.mkldnn.conv.fp32_precision == "ieee"


def test_no_accelerator_is_started() -> None:
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types here
    with Guard(nn.Linear(1, 1)):
        pass
    assert torch.cuda.is_initialized() is started  # type: ignore[no-untyped-call]  # torch has no types here


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
@pytest.mark.parametrize("users", [None, 0.3])
def test_a_devices_memory_limit_is_what_it_was_after_another_was_set_and_taken_back(
    monkeypatch: pytest.MonkeyPatch, backend: str, users: float | None
) -> None:
    """Without a limit cudaMallocAsync says a number far above 1, which it does not take."""
    machine = install(monkeypatch, Card(backend=backend, total_bytes=12_345_678_901))
    monkeypatch.setattr(process_state, "running_accelerator", lambda: torch.cuda)
    if users is not None:
        machine.cards[0].set_fraction(users)
    flags = [flag for flag in process_state.process_flags() if "memory_fraction" in flag.name]
    kept = [flag.read() for flag in flags]
    for flag in flags:
        flag.save()
    with devices.choose("cuda").limit(2**30, lambda: 0):
        assert [flag.read() for flag in flags] != kept
    assert [flag.read() for flag in flags] == kept
    machine.cards[0].set_fraction(0.1)
    for flag in flags:
        flag.restore()
    assert [flag.read() for flag in flags] == kept


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # as users draw


@pytest.mark.fault("F30")
def test_each_generator_goes_on_where_it_was_kept() -> None:
    rngs = global_rngs()
    for rng in rngs:
        rng.save()
    first = drawn()
    assert {name for rng in rngs for name in rng.differences()} == {"rng.python", "rng.numpy", "rng.torch"}
    for rng in rngs:
        rng.restore()
    assert drawn() == first


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_none_is_running() -> None:
    assert running_accelerator() is None


@pytest.mark.parametrize("number", FROM_OUTSIDE)
@pytest.mark.parametrize("writes", [False, True])
def test_an_interrupt_waits_while_the_flags_of_precision_are_read_or_written(
    number: int, writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both change the newer settings one by one."""
    real, handler = torch._C._set_fp32_precision_setter, signal.getsignal(number)
    before, calls = process_state.read_precision(), 0

    def stop(*_: object) -> None:
        raise InterruptedError

    def interrupted(*given: str) -> None:
        nonlocal calls
        calls -= 1
        real(*given)
        if not calls:
            signal.raise_signal(number)

    signal.signal(number, stop)
    monkeypatch.setattr(torch._C, "_set_fp32_precision_setter", interrupted)
    try:
        for at in range(1, (1 if writes else 2) * (len(before) - len(("matmul", "cudnn_tf32"))) + 1):
            calls = at
            with pytest.raises(InterruptedError):
                process_state.write_precision(before) if writes else process_state.read_precision()
            calls = -1
            assert process_state.read_precision() == before, at
    finally:
        monkeypatch.undo()
        signal.signal(number, handler)
        process_state.write_precision(before)
