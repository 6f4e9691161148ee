"""What stays between two steps is counted once."""

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.probing.local_bench import LocalBench
from autofit.probing.workload_facts import static_bytes
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY


def test_static_bytes_counts_each_storage_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    model[1].weight = model[0].weight
    with LocalBench(
        Workload(model, targets.vectors(), step_fn=lambda m, b: m(b[0][:, :4]).sum()), CPU(), PLENTY
    ) as bench:
        step = bench._build(Plan())
        assert static_bytes(step) == 64 + 4 * 16 + 8  # one weight; scale, shift, mean, variance; a count
        step.model.get_parameter("0.weight").grad = torch.zeros(4, 4)
        assert static_bytes(step) == 2 * 64 + 4 * 16 + 8
        step.model.get_parameter("0.weight").grad = None
        step.close()
