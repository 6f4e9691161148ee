"""Row D3 on a CUDA device: what a step draws there is shared by both sides of a gate, whatever the batch.

A phantom's kernels compute nothing, so there the structure is looked at: every draw is known by its sample, and the
generators are as they were. On a real GPU the gates have to pass, and to refuse.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.gates import compare
from autofit.gates.gradients import WIDTH, Gradients, Steps, sketch
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.batch_algebra import split
from autofit.workloads.counted_batches import counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.gates.comparing import Build, accumulated, rounded

SAMPLES = 8


def noisy(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Draws in every way that a diffusion model with stochastic depth does, on the device and on the host."""
    steps = torch.randint(0, 1000, (len(batch),), device=batch.device)
    noise = torch.randn_like(batch) + torch.randn(len(batch), 1).to(batch.device)
    kept = torch.rand(1, device=batch.device)
    path = batch.new_empty(len(batch), 1).bernoulli_(0.8)
    output = model(batch + noise * steps[:, None] / 1000) * kept
    output = F.dropout(output, 0.1, training=True)  # in 16 bits under autocast
    return (output * path).float().square().mean()


def build(model: nn.Module, loss: Any) -> Build:
    def make(plan: Plan) -> TrainStep:
        rule = LossRule("loss", loss, inferred=False, about="")
        return prepare(plan, Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cuda")), members())

    return make


def batch() -> torch.Tensor:
    return torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(0))


def mlp(norm: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), norm or nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)).cuda()


def test_every_draw_on_the_device_is_known_by_its_sample() -> None:
    gradients = Gradients(Steps(build(mlp(), noisy)))
    parts = [counted(part) for part in split(batch(), [1] * SAMPLES)]
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    gradients.rehearse(counted(batch()))
    for start, part in enumerate(parts):
        gradients.of(part, start=start)
    ledger = gradients.ledger
    assert ledger.drawn
    assert not ledger.unshared
    assert [tuple(each.shape) for each in ledger.results.values()] == [(8,), (8, 16), (8, 1), (1,), (8, 1), (8, 4)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(), before[1])


def test_draws_in_16_bits_are_the_same_draws() -> None:
    gradients = Gradients(Steps(build(mlp(), noisy)))
    gradients.rehearse(counted(batch()))
    gradients.of(counted(batch()), Plan(values={"precision": "bf16"}))
    assert not gradients.ledger.unshared
    assert len(gradients.ledger.results) == 6


@pytest.mark.real_gpu
def test_gates_pass_where_only_chance_differs() -> None:
    made = build(mlp(), noisy)
    assert accumulated(made, batch(), 0).passed
    assert rounded(made, Plan(values={"precision": "bf16"}), batch(), 0).passed


@pytest.mark.real_gpu
def test_batch_norm_is_refused_in_noise_too() -> None:
    assert not accumulated(build(mlp(nn.BatchNorm1d(32)), noisy), batch(), 0).passed


def test_gradients_are_folded_on_the_device() -> None:
    wide = nn.Linear(512, 512, device="cuda")
    wide.weight.grad = torch.ones_like(wide.weight)
    found = sketch(list(wide.parameters()))
    assert (len(found), found.device.type, found.dtype) == (WIDTH, "cpu", torch.float32)


def test_rounding_of_tf32_is_allowed_for_where_products_run_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's convolutions do by default, and take another algorithm for another batch size."""
    gradients = Gradients(Steps(build(nn.Linear(16, 4, device="cuda"), lambda model, batch: model(batch).sum())))
    inputs = counted(batch().cuda())
    assert gradients.of(inputs).order_l2 == compare.TF32_L2
    for kernels in ("conv", "rnn"):
        monkeypatch.setattr(torch.backends.cudnn, kernels, SimpleNamespace(fp32_precision="ieee"))
    assert gradients.of(inputs).order_l2 == compare.ORDER_L2
