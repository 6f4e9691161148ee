"""cuDNN's benchmark on a device: the flag is on in the processes of its plans, and in no others."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.briefing import Options
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.workloads.workload import Workload
from tests.cuda.targets import own_loss

CUDNN: Any = torch.backends.cudnn
SEEN = "CUDNN_BENCHMARK_SEEN"
"""Variable with the path of a file to which each forward pass adds a line."""
OPTIONS = Options(memory_budget="4GiB", strategies=("cudnn_benchmark",))


class Convolution(nn.Module):
    """Notes the flag and the process of each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, device="cuda")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if path := os.environ.get(SEEN):
            with Path(path).open("a") as file:
                print(json.dumps([os.getpgrp(), CUDNN.benchmark]), file=file)
        output: torch.Tensor = self.convolution(images).square().mean()
        return output


def make_convolution() -> autofit.Workload:
    images = TensorDataset(torch.zeros(64, 3, 16, 16))
    return Workload(Convolution(), DataLoader(images, batch_size=8), step_fn=own_loss)


def test_each_value_runs_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    monkeypatch.setenv(SEEN, str(seen))
    with RemoteBench(Target(f"{__file__}:make_convolution", device="cuda", options=OPTIONS)) as bench:
        assert [knob.name for knob in bench.briefing.space.knobs if knob.of_process] == ["cudnn_benchmark"]
        plain = bench.briefing.space.baseline
        for plan in (plain, plain.replace(cudnn_benchmark=True), plain):
            assert bench.evaluate(plan, Purpose.BLOCK).measured
    last = dict[int, bool]()  # of a process: the opening makes a forward pass before any plan runs
    for line in seen.read_text().splitlines():
        process, flag = json.loads(line)
        last[process] = flag
    assert list(last.values()) == [False, True, False]


def test_in_the_users_process_it_is_left_out_with_the_reason(device: Device) -> None:
    with LocalBench(make_convolution(), device, OPTIONS) as bench:
        assert bench.briefing.space.knobs == ()
        (refused,) = bench.briefing.space.refused
    assert "`autofit tune`" in refused.reason


def test_a_proof_with_it_is_measured_and_puts_the_flag_back(device: Device) -> None:
    with LocalBench(make_convolution(), device, OPTIONS) as bench:
        plan = Plan(values={**bench.briefing.space.baseline.values, "cudnn_benchmark": True})
        outcome = bench.evaluate(plan, Purpose.PROOF)
        assert outcome.measured, outcome.reason
        assert CUDNN.benchmark is False
