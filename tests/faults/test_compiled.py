"""F51: a model that torch.compile compiles again for each size is compared as it would be trained."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload

SIZES = range(2, 13)


@pytest.fixture
def forgetful() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("forgetful")
@pytest.mark.fault("F51")
def test_f51_each_size_has_a_graph_of_its_own_and_none_runs_uncompiled() -> None:
    """The second size had a graph for any size."""
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled.extend(each.shape[0] for each in inputs if isinstance(each, torch.Tensor) and each.shape[1:] == (8,))
        return graph.forward

    torch.manual_seed(0)
    # Lightning replaces torch.compile: it keeps the arguments on the model, and the bench would restore them.
    compile_ = inspect.unwrap(torch.compile)
    model = compile_(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), backend=backend)
    assert isinstance(model, nn.Module)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), batch_size=2)
    options = Options(memory_budget="1GiB", strategies=("batching",))
    with LocalBench(Workload(model, loader, loss_fn=F.cross_entropy), devices.choose("cpu"), options) as bench:
        torch.compiler.reset()
        compiled.clear()
        for size in SIZES:
            plan = bench.briefing.space.baseline.replace(micro_batch_size=size)
            assert bench.evaluate(plan, Purpose.BLOCK).measured
    assert [size for size in compiled if size != 16] == list(SIZES)  # 16: a weight of the model's
    assert all(type(size) is int for size in compiled)
