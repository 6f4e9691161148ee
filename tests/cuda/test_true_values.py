"""What only a real GPU can show: gates on true gradients, scalers on true overflow, whole searches on true times."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.api import tune
from autofit.core.outcome import Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.targets import BATCHING, FREE, MIB, evaluate, sized
from tests.digests import digest_of
from tests.fakes import notes, unguarded

pytestmark = pytest.mark.real_gpu


def vectors(batch_size: int = 16) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(256, 64, generator=generator), torch.randint(0, 8, (256,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=batch_size)


def mlp(normalised: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(512)] if normalised else []
    return nn.Sequential(nn.Linear(64, 512), *middle, nn.GELU(), nn.Linear(512, 8)).cuda()


ACCUMULATED: dict[str, KnobValue] = {"micro_batch_size": 4, "accumulation_steps": 4}


def refusals(workload: Workload, device: Device, strategy: str, **values: KnobValue) -> dict[str, str]:
    """Returns the values that the check of a plan refuses, with the reasons. The plan has been compared."""
    options = BATCHING.model_copy(update={"strategies": (strategy,)})
    with LocalBench(workload, device, options) as bench:
        found = bench.check(bench.briefing.space.baseline.replace(**values), {})
    assert found.checked
    assert found.verdicts
    return {refusal.name: refusal.reason for refusal in found.refused}


def test_accumulation_is_allowed_where_samples_are_independent(device: Device) -> None:
    workload = Workload(mlp(), vectors(), loss_fn=nn.functional.cross_entropy, global_batch_size=16)
    assert refusals(workload, device, "batching", **ACCUMULATED) == {}
    with LocalBench(workload, device, BATCHING) as bench:
        assert bench.briefing.space.sizes == (1, 2, 4, 8, 16)


def test_accumulation_is_refused_where_a_layer_looks_at_the_whole_batch(device: Device) -> None:
    workload = Workload(mlp(normalised=True), vectors(), loss_fn=nn.functional.cross_entropy, global_batch_size=16)
    reason = refusals(workload, device, "batching", **ACCUMULATED)["accumulation"]
    assert "accumulation changes the gradient of this model" in reason


def test_accumulation_passes_with_tf32_products(device: Device) -> None:
    """Users turn TF32 on: its rounding depends on no batch, so the parts still add up to the whole."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        workload = Workload(mlp(), vectors(), loss_fn=nn.functional.cross_entropy, global_batch_size=16)
        assert refusals(workload, device, "batching", **ACCUMULATED) == {}
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_reduced_precision_is_allowed_on_an_ordinary_model(device: Device) -> None:
    workload = Workload(mlp(), vectors(), loss_fn=nn.functional.cross_entropy)
    for name in {"bf16", "tf32"} & device.capabilities():
        assert refusals(workload, device, "precision", precision=name) == {}


def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
    """Differences of large numbers: 16 bits hold none of the digits that matter."""
    loss: torch.Tensor = (model(batch[0]).float() - 4096).square().mean()
    return loss


def test_reduced_precision_is_refused_where_it_loses_the_gradient(device: Device) -> None:
    model = mlp()
    with torch.no_grad():
        list(model.parameters())[-1].fill_(4096.0)
    for name in {"bf16", "fp16"} & device.capabilities():
        refused = refusals(Workload(model, vectors(), step_fn=cancelling), device, "precision", precision=name)
        assert f"precision={name}" in refused


class Counted:
    """A loss whose gradient overflows in 16 bits until the scale has come down; counts forward passes."""

    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls += 1
        loss: torch.Tensor = (model(batch[0]).float() - 3).mul(self.factor).sum()
        return loss


@pytest.fixture
def updates() -> Any:
    return notes()


def recipe(updates: list[int]) -> Any:
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=1e-6)
        optimizer.register_step_pre_hook(lambda *_: updates.append(1))
        return optimizer

    return sgd


@pytest.mark.fault("F45")
def test_steps_that_overflow_in_fp16_do_not_count(device: Device, updates: list[int]) -> None:
    """A gradient of 4 at the outputs times the first scale of 65536 is above the largest number of fp16, 65504."""
    loss = unguarded(Counted(factor=4.0))
    workload = Workload(mlp(), vectors(), step_fn=loss, optimizer=recipe(updates))
    with LocalBench(workload, device, FREE) as bench:
        updates.clear()
        loss.calls = 0
        outcome = bench.evaluate(bench.briefing.space.baseline.replace(precision="fp16"), Purpose.PROOF)
    assert outcome.measured, outcome
    assert outcome.measurement is not None
    assert outcome.measurement.worst_steps == 3
    timed = len(outcome.measurement.warmup_times_s) + outcome.measurement.timed_steps
    assert len(updates) == 3 + timed + 3  # on the worst batch, timed, and for the phases
    assert loss.calls > len(updates)


@pytest.mark.fault("F44")
def test_a_gradient_that_no_scale_can_hold_is_numeric(device: Device, updates: list[int]) -> None:
    workload = Workload(mlp(), vectors(), step_fn=Counted(factor=1e8), optimizer=recipe(updates))
    with LocalBench(workload, device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline.replace(precision="fp16"), Purpose.PROBE)
    assert outcome.status is Status.NUMERIC
    assert updates == []


def test_a_loss_that_is_not_finite_is_numeric(device: Device) -> None:
    workload = Workload(mlp(), vectors(), step_fn=lambda model, batch: model(batch[0]).sum() * float("inf"))
    assert evaluate(workload, device).status is Status.NUMERIC


def images() -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Workload(
        model.cuda(),
        [torch.randn(8, 3, 64, 64)] * 2,
        step_fn=lambda model, x: (model(x) - 1).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-6),  # how many steps ran does not matter
    )


def test_the_layout_changes_neither_loss_nor_weights(device: Device) -> None:
    workload = images()
    before = digest_of(workload.model)
    losses = []
    for layout in ("default", "channels_last"):
        outcome = evaluate(workload, device, memory_format=layout)
        assert outcome.measured, outcome
        assert outcome.measurement is not None
        losses.append(outcome.measurement.loss)
        assert digest_of(workload.model) == before
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert workload.model.get_parameter("0.weight").is_contiguous()


def test_a_plan_larger_than_the_card_is_refused_by_the_driver(device: Device) -> None:
    """No limit of ours: the device itself says no, and everything is given back."""
    live = torch.cuda.memory_allocated()
    outcome = evaluate(sized(held=2 * device.capacity_bytes() / 8 / MIB), device, FREE)
    assert (outcome.status, outcome.phase) == (Status.OUT_OF_MEMORY, "forward")
    assert torch.cuda.memory_allocated() <= live + MIB


def search(model: nn.Module, study: Path | str, calls: list[int], **changes: Any) -> Any:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(len(batch[0]))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    given: dict[str, Any] = {"memory_budget": "4GiB", "time_budget": "60s", "progress": False, "global_batch_size": 64}
    return tune(model, vectors(), step_fn=step, study=study, **(given | changes))


def test_a_whole_search_leaves_no_trace_and_keeps_to_its_budget(device: Device) -> None:
    model = mlp()
    x = torch.randn(32, 64, device="cuda")
    loss, digest = model(x).detach().cpu(), digest_of(model)
    fit = search(model, ":memory:", [])
    assert torch.equal(model(x).detach().cpu(), loss)
    assert digest_of(model) == digest
    memory = fit.proof.memory
    assert memory.footprint_bytes <= 4 * 2**30
    assert (memory.allocator_retries, memory.swallowed_ooms) == (0, 0)
    assert all(seconds > 0 for seconds in fit.proof.step_times_s)
    assert isinstance(fit.plan, Plan)


def test_a_search_goes_on_from_its_study(device: Device, tmp_path: Path) -> None:
    first, second = notes(), notes()
    search(mlp(), tmp_path / "study.db", first, strategies=("batching",))
    search(mlp(), tmp_path / "study.db", second, strategies=("batching",))
    assert 0 < len(second) < len(first)
