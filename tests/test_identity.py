"""What decides whether measurements are comparable: structure, code, options, device and versions."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autofit.identity import settings, signature
from autofit.workloads.batches import BatchSource
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import bench_of
from tests.probing.stateful import used_workload
from tests.processes import printed_by_two_processes
from tests.workloads import gans

ADAM: dict[str, Any] = {"lr": 1e-3}


def adam(workload: Workload, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(workload.model.parameters(), **ADAM | options)


def of(
    workload: Workload, optimizer: torch.optim.Optimizer | None = None, source: BatchSource | None = None
) -> dict[str, str]:
    return settings(workload, optimizer or adam(workload), "cpu", source or source_of(workload.loader))


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_weights_and_the_learning_rate_do_not_count() -> None:
    workload = targets.make_mlp()
    before = of(workload)
    with torch.no_grad():
        next(workload.model.parameters()).add_(1.0)
    assert of(workload, adam(workload, lr=0.5)) == before


@pytest.mark.parametrize("options", [{"weight_decay": 0.3}, {"amsgrad": True}, {"foreach": True}])
def test_options_of_the_optimizer_count(options: dict[str, Any]) -> None:
    workload = targets.make_mlp()
    assert differing(of(workload), of(workload, adam(workload, **options))) == {"optimizer_options"}


def test_the_code_of_the_users_functions_counts() -> None:
    workload = replace(targets.make_mlp(), loss_fn=F.cross_entropy)
    one = replace(workload, loss_fn=lambda output, target: F.cross_entropy(output, target) * 2)
    other = replace(workload, loss_fn=lambda output, target: F.cross_entropy(output, target) * 3)
    same = replace(workload, loss_fn=lambda output, target: F.cross_entropy(output, target) * 2)
    assert differing(of(one), of(other)) == {"code"}
    assert of(one) == of(same)


def test_the_code_of_the_users_modules_counts() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(x)
            return output

    class Squared(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(x) ** 2
            return output

    Squared.__qualname__ = Net.__qualname__
    one, other = (Workload(cls(), targets.vectors()) for cls in (Net, Squared))
    assert differing(of(one), of(other)) == {"code"}


def test_the_worst_sample_and_the_flags_count(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = targets.make_mlp()
    before = of(workload)
    longer = source_of(workload.loader, worst_case=lambda size: (torch.zeros(size, 9), torch.zeros(size)))
    assert differing(before, of(workload, source=longer)) == {"worst_sample"}
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not torch.backends.cudnn.benchmark)
    assert differing(before, of(workload)) == {"flags"}


def test_every_process_finds_the_same() -> None:
    code = (
        "from tests.probing import targets; from autofit.identity import settings; "
        "from autofit.workloads.sources import source_of; workload = targets.make_mlp(); "
        "print(settings(workload, None, 'cpu', source_of(workload.loader)))"
    )
    found = printed_by_two_processes(code)
    assert len(found) == 1


def test_a_step_of_the_user_and_the_kind_of_each_optimizer_count() -> None:
    workload = gans.workload()
    optimizer = workload.make_optimizer()
    found = settings(workload, optimizer, "cpu", source_of(workload.loader))
    assert found["update"] == "update_fn"
    assert found["optimizer"] == "critic: AdamW, generator: Adam"
    assert "update" not in of(targets.make_mlp())

    def other(models: Any, optimizers: Any, batch: Any) -> Any:
        return gans.update(models, optimizers, batch)

    changed = replace(workload, update_fn=other)
    assert "code" in differing(found, settings(changed, optimizer, "cpu", source_of(workload.loader)))


@pytest.fixture
def used() -> Workload:
    return used_workload()


def signature_of(workload: Workload) -> str:
    return bench_of(workload).briefing.environment.workload


def test_the_signature_is_that_of_the_structure_and_not_of_the_weights(used: Workload) -> None:
    own = signature_of(used)
    trained = copy.copy(used)
    with torch.no_grad():
        trained.model.get_parameter("layers.0.weight").add_(1.0)
    assert signature_of(trained) == own
    assert signature_of(targets.make_mlp()) != own
    assert signature_of(targets.make_mlp()) == signature_of(targets.make_mlp())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda: Workload(targets.mlp(width=17), targets.vectors()), "model"),
        (lambda: Workload(without_last_bias(), targets.vectors()), "model"),
        (lambda: Workload(targets.mlp().double(), doubles()), "model"),
        (lambda: Workload(frozen(), targets.vectors()), "model"),
        (lambda: targets.make_mlp(loss_fn=nn.CrossEntropyLoss()), "data"),
        (lambda: Workload(targets.mlp(), doubles(torch.float32), loss_fn=lambda x, y: x.mean()), "data"),
    ],
)
@pytest.mark.fault("F57")
def test_the_signature_changes_with(change: Callable[[], Workload], part: str) -> None:
    own, other = signature_of(targets.make_mlp()).split("-"), signature_of(change()).split("-")
    assert own[part == "data"] != other[part == "data"]
    if part == "data":
        assert own[0] == other[0]


def without_last_bias() -> nn.Module:
    return nn.Sequential(*list(targets.mlp().children())[:3], nn.Linear(16, 4, bias=False))


def doubles(dtype: torch.dtype = torch.float64) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 8, dtype=dtype), torch.randn(32, 4)), batch_size=8)


def frozen() -> nn.Module:
    model = targets.mlp()
    model[0].weight.requires_grad_(False)
    return model


def test_a_signature_is_two_short_digests() -> None:
    assert signature(targets.mlp(), "x float32[B]", "mse_loss") == signature(targets.mlp(), "x float32[B]", "mse_loss")
    first, second = signature(targets.mlp(), "x float32[B]", "mse_loss").split("-")
    assert len(first) == len(second) == 8
