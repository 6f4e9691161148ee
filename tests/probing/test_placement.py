"""Where the model has to be."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import (
    WorkloadError,
)
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import bench_of


def test_a_model_elsewhere_is_refused_with_both_places() -> None:
    model = targets.mlp().to("meta")
    with pytest.raises(WorkloadError) as error:
        bench_of(Workload(model, targets.vectors()))
    text = str(error.value)
    assert "the model is on meta, but it is to be tuned on cpu" in text
    assert "model.to('cpu')" in text
    assert "pass device='meta'" in text
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(WorkloadError, match="the model is on cpu, meta"):
        bench_of(Workload(mixed, targets.vectors()))


def test_a_model_may_be_moved_where_it_is_not_the_users_own() -> None:
    moved: list[torch.device] = []

    class Movable(nn.Linear):
        def to(self, device: Any) -> Any:  # type: ignore[override]  # a model of the user's own
            moved.append(device)
            return super().to(device)

    bench_of(Workload(Movable(8, 4), targets.vectors()), own_process=True)
    assert moved == [torch.device("cpu")]
    bench_of(Workload(Movable(8, 4), targets.vectors()))
    assert len(moved) == 1
