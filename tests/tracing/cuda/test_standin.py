"""The stand-in, in processes of its own: it becomes the process's accelerator and cannot be taken back.

The peaks are those of the real allocator under torch 2.11's CUDA build (requested bytes of the third step, device of
compute capability 8.0, cuBLAS workspaces and the test's own data taken off).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def phases(forward: int, backward: int, optimizer: int) -> dict[str, int]:
    return {"step 3 forward": forward, "step 3 backward": backward, "step 3 optimizer": optimizer}


PEAKS = {
    "as it is": ("gpt", {}, phases(3025408, 3089672, 2117124)),
    "bf16": ("gpt", {"precision": "bf16"}, phases(2449208, 2490552, 2117124)),
    "checkpointed": (
        "gpt",
        {"precision": "bf16", "checkpointed_blocks": 2, "dropout": 0.1},
        phases(1881728, 2207520, 2117124),
    ),
    "fused": (
        "gpt",
        {"precision": "fp16", "optimizer_implementation": "fused"},
        phases(2449300, 2490648, 1693808),
    ),
    "images": ("cnn", {}, phases(260072, 293048, 30108)),
    "channels last": (
        "cnn",
        {"precision": "bf16", "memory_format": "channels_last"},
        phases(154216, 158568, 30108),
    ),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What one child process found: peaks by name, kernels, casts."""
    jobs = [("peaks", (kind, values)) for kind, values, _ in PEAKS.values()]
    command = [sys.executable, "-m", "tests.tracing.standing_in"]
    others = ("kernels", "casts", "lists", "released", "disguised", "recomputed")
    command.append(json.dumps([*jobs, *((name, ()) for name in others)]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout)
    peaks = dict(zip(PEAKS, answers, strict=False))
    return {"peaks": peaks, **dict(zip(others, answers[len(PEAKS) :], strict=True))}


@pytest.mark.parametrize("name", PEAKS)
def test_a_trace_has_the_peaks_of_the_real_cuda_code(found: dict[str, Any], name: str) -> None:
    expected, peaks = PEAKS[name][2], found["peaks"][name]
    assert peaks.keys() == expected.keys()
    # Where layouts are mixed, a sum of gradients may lie otherwise than on CUDA, and be copied once more or less.
    tolerance = 0.01 if name == "channels last" else 0.0005
    for phase, most in expected.items():
        assert peaks[phase] == pytest.approx(most, rel=tolerance), phase


def test_blocks_that_make_tensors_are_computed_again_on_the_same_device(found: dict[str, Any]) -> None:
    """What they made there was on another device, and with torch 2.13 the process was ended by that."""
    once, again = found["recomputed"]
    assert again > once


def test_the_attention_kernel_is_the_chips(found: dict[str, Any]) -> None:
    kernels = found["kernels"]
    assert kernels["75 torch.float32 False"] == "efficient"
    assert kernels["75 torch.bfloat16 False"].endswith("softmax")
    assert kernels["80 torch.bfloat16 False"] == "flash"
    assert kernels["80 torch.bfloat16 True"] == "efficient"
    assert kernels["90 torch.bfloat16 False"] == "cudnn"
    assert kernels["90 torch.float32 True"] == "efficient"


def test_autocast_converts_as_on_cuda(found: dict[str, Any]) -> None:
    casts = found["casts"]
    assert casts["types"] == {
        "linear": "torch.float16",
        "softmax": "torch.float32",
        "sum": "torch.float32",
        "cat": "torch.float32",
        "interpolate": "torch.float32",
    }
    assert casts["joining"] == [5 * 32 * 4]  # what is joined is not converted before
    assert casts["normed"] == [["torch.float32"] * 2, [4, 4]]  # nor what a norm is taken of
    assert "unsafe to autocast" in casts["refused"]
    # The second product finds its weight and bias converted: input and result alone are new.
    assert casts["again"] == [5 * 8 * 2, 5 * 24 * 2]
    assert (casts["held"], casts["kept"]) == (1, 0)


ELSEWHERE = {"aten::_cudnn_rnn", "aten::cudnn_convolution", "aten::cudnn_convolution_transpose"}
"""Operators that a step reaches on a CUDA device only. Overloads that take names of dimensions are left out too."""


def test_autocast_knows_the_operators_that_it_knows_on_cuda(found: dict[str, Any]) -> None:
    missing, too_many = found["lists"]
    assert not too_many
    assert {name for name in missing if not re.search(r"dimname|\.names_", name.lower())} <= ELSEWHERE


def test_results_that_nobody_keeps_are_released_in_order_as_by_cpp(found: dict[str, Any]) -> None:
    assert found["released"] == sorted(found["released"])
    assert len(found["released"]) >= 4


def test_autocast_converts_an_attention_mask_of_numbers_too(found: dict[str, Any]) -> None:
    assert found["casts"]["masks"] == ["torch.float16"]


def test_the_users_code_is_told_that_it_is_on_cuda(found: dict[str, Any]) -> None:
    """Rows `is_cuda-branch`, `devtype-branch`, `autocast-on-cuda`, `autocast-off-cuda` of the sweep."""
    told = found["disguised"]
    assert (told["is_cuda"], told["type"], told["made"]) == (True, "cuda", "cuda")
    assert told["same"], "bringing a tensor to its own device makes no copy"
    assert (told["low"], told["enabled"], told["full"]) == ("torch.bfloat16", True, "torch.float32")
    assert told["capability"] == [8, 0]
    assert told["host"] == [False, "cpu"]
    assert told["after"] == ["standin", False]


def test_operators_with_a_kernel_of_their_own_on_cuda_are_one(found: dict[str, Any]) -> None:
    """Rows `rms_norm`, `sdpa-forced-math`, `logsigmoid`."""
    told = found["disguised"]
    assert told["norm"] == ["aten::_fused_rms_norm"], "the second, of mixed types, is made of others"
    assert told["forced"] == []
    assert told["buffer"] == 0
