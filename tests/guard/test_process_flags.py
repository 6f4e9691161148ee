"""Process-wide settings are read and written, whichever interface set them (fault matrix F30)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from torch import nn

from autofit import devices
from autofit.guard import Guard, process_flags
from tests.devices.fake_torch import Card, install

BACKENDS: Any = torch.backends
"""Typed as anything: torch has no types for its precision settings."""


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
    monkeypatch.setattr(process_flags, "running_accelerator", lambda: torch.cuda)
    if users is not None:
        machine.cards[0].set_fraction(users)
    flags = [flag for flag in process_flags.process_flags() if "memory_fraction" in flag.name]
    kept = [flag.read() for flag in flags]
    with devices.choose("cuda").limit(2**30, lambda: 0):
        assert [flag.read() for flag in flags] != kept
    assert [flag.read() for flag in flags] == kept
    machine.cards[0].set_fraction(0.1)
    for flag, value in zip(flags, kept, strict=True):
        flag.write(value)
    assert [flag.read() for flag in flags] == kept
