"""Process-wide flags are named and put back, whichever interface set them (fault matrix F30)."""

import gc
import logging
import os
import signal
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.guard import Guard


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
def test_each_process_wide_flag_is_named_and_put_back(name: str) -> None:
    read, change = FLAGS[name]
    before = read()
    with Guard(nn.Linear(1, 1)) as guard:
        change()
        named = guard.differences()
    assert read() == before
    assert name in named
