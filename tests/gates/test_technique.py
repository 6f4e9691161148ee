"""A technique passes where it keeps the gradient or rounds it, and is refused where it changes it."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.compare import REDUCED_L2
from autofit.gates.gradients import Steps
from autofit.gates.technique import technique
from autofit.gates.verdict import GateVerdict
from autofit.prepare import prepare
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.cpu import needs_bf16
from tests.gates.comparing import (
    BF16,
    FP16,
    Recurrent,
    build,
    mean,
    norm,
    rounded,
    tokens,
    vectors,
)
from tests.probing import targets


def test_bf16_passes_on_a_transformer() -> None:
    verdict = rounded(build(targets.Transformer(), targets.token_mean), BF16, tokens((6,) * 8), seed=0)
    assert verdict.passed, verdict.reason
    assert "cosine of the gradient 0.999" in verdict.reason


def test_a_cosine_that_rounding_takes_beyond_1_is_shown_as_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.functional, "cosine_similarity", lambda *_, dim: torch.tensor(1.00001))
    verdict = rounded(build(targets.Transformer(), targets.token_mean), BF16, tokens((6,) * 8), seed=0)
    assert "cosine of the gradient 1.00000 " in verdict.reason


def test_a_model_that_overflows_in_fp16_is_refused() -> None:
    verdict = rounded(build(targets.Overflowing(), mean), FP16, vectors(), seed=0)
    assert not verdict.passed
    assert verdict.reason == "the gradient is not finite"
    assert rounded(build(targets.Overflowing(), mean), BF16, vectors(), seed=0).passed


def test_the_scalers_first_scale_is_lowered_as_training_would() -> None:
    """Gradients of this loss are large: times 2**16 they overflow in fp16, times 1 they do not."""
    model = norm("none")
    verdict = rounded(build(model, lambda model, batch: 5000 * mean(model, batch)), FP16, vectors(), seed=0)
    assert verdict.passed, verdict.reason
    with build(model, mean)(FP16) as step:
        assert step.draft.scaler is not None
        step.draft.scaler.scale(torch.ones(1))
        assert step.draft.scaler.get_scale() == 2**16  # no scaler is left lowered


def test_a_defect_that_only_reduced_precision_shows_is_refused() -> None:
    def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
        # The difference of two nearly equal products: nothing of it is left in bf16.
        output = model(batch[0])
        loss: torch.Tensor = ((output + 300.0).to(output.dtype) - 300.0).square().mean()
        return loss

    verdict = rounded(build(norm("none"), cancelling), BF16, vectors(), seed=0)
    assert not verdict.passed
    assert "at least 0.999" in verdict.reason


def test_the_same_random_numbers_are_drawn_on_both_sides() -> None:
    """Noise that a model adds itself would otherwise hide what is asked about."""

    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))

    verdict = rounded(build(norm("none"), noisy), BF16, vectors(), seed=0)
    assert verdict.passed
    torch.manual_seed(99)  # whatever the user drew before
    assert rounded(build(norm("none"), noisy), BF16, vectors(), seed=0) == verdict
    assert rounded(build(norm("none"), noisy), BF16, vectors(), seed=1) != verdict


ONES = Counted(torch.ones(2, 3), 2)


class Moody(nn.Module):
    """Fails in some modes; notes the mode of each call."""

    def __init__(self, *failing: bool) -> None:
        super().__init__()
        self.layer, self.failing, self.seen = nn.Linear(3, 1), failing, list[bool]()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.training)
        if self.training in self.failing:
            raise RuntimeError(f"no loss with training={self.training}")
        output: torch.Tensor = self.layer(batch).sum()
        return output


def compared(model: nn.Module) -> GateVerdict:
    rule = LossRule("step_fn", lambda model, batch: model(batch), False, "")

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cpu")), [])

    return technique(Steps(build), Plan(), ONES)


def test_evaluation_mode_comes_first_and_is_enough() -> None:
    model = Moody()
    assert compared(model).reason == "relative L2 of the gradient 0.0e+00 (at most 0.001)"
    assert model.seen == [False, False]


def test_a_step_that_fails_in_it_is_compared_in_training_mode() -> None:
    model = Moody(False)
    found = compared(model)
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
    assert model.seen == [False, True, True]


def test_a_step_that_fails_in_both_raises() -> None:
    with pytest.raises(RuntimeError, match="no loss with training=True"):
        compared(Moody(False, True))


@needs_bf16
def test_precision_that_recurrent_layers_do_not_survive_is_refused_in_training_mode() -> None:
    def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        loss: torch.Tensor = ((output + 300.0).to(output.dtype) - 300.0).square().mean()
        return loss

    verdict = rounded(build(Recurrent(by_hand=True), cancelling), BF16, vectors(), seed=0)
    assert not verdict.passed
    assert verdict.reason.endswith("cudnn RNN backward can only be called in training mode")
    assert "(at least 0.999)" in verdict.reason


def normalised(depth: int) -> nn.Module:
    """Returns linear layers, each with batch normalisation; the deeper, the more sensitive to rounding."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 16, generator=generator), torch.arange(8) % 4


def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
    """Differences of large numbers: 16 bits hold none of the digits that matter."""
    loss: torch.Tensor = (model(batch[0]).float() - 4096).square().mean()
    return loss


def with_large_outputs(depth: int) -> nn.Module:
    model = normalised(depth)
    with torch.no_grad():
        list(model.parameters())[-1].fill_(4096.0)
    return model


def test_a_gradient_that_rounding_changes_is_compared_with_fixed_statistics() -> None:
    found = rounded(build(normalised(depth=24), mean), BF16, samples(), 0)
    assert found.passed, found.reason
    assert found.evaluated
    assert "in float32 too when the weights are rounded" in found.reason


def test_the_verdict_depends_on_no_earlier_batch() -> None:
    fresh, warm = normalised(depth=24), normalised(depth=24)
    for number in range(100):
        warm(torch.randn(8, 16, generator=torch.Generator().manual_seed(number)))
    assert not torch.equal(fresh.get_buffer("3.1.running_mean"), warm.get_buffer("3.1.running_mean"))
    found = [rounded(build(model, mean), BF16, samples(), 0) for model in (fresh, warm)]
    assert found[0] == found[1]


def test_the_statistics_are_put_back() -> None:
    model = normalised(depth=24)
    before = dict(model.named_buffers())
    rounded(build(model, mean), BF16, samples(), 0)
    assert all(buffer is before[name] for name, buffer in model.named_buffers())
    assert float(model.get_buffer("3.1.running_mean").abs().max()) > 0  # moved by the steps: the guard puts it back


def test_the_weights_are_put_back() -> None:
    model = normalised(depth=24)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rounded(build(model, mean), BF16, samples(), 0)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert all(module.training for module in model.modules())


def test_a_loss_that_loses_its_digits_is_refused_although_the_gradient_is_chaotic() -> None:
    found = rounded(build(with_large_outputs(depth=24), cancelling), BF16, samples(), 0)
    assert not found.passed
    assert not found.evaluated


def test_a_gradient_that_rounding_keeps_decides_by_itself() -> None:
    """One layer: the float32 gradient stays when the weights are rounded, so the loss is what loses the digits."""
    found = rounded(build(with_large_outputs(depth=1), cancelling), BF16, samples(), 0)
    assert not found.passed
    assert f"(at most {REDUCED_L2})" in found.reason


def test_an_ordinary_model_is_compared_as_it_trains() -> None:
    found = rounded(build(normalised(depth=1), mean), BF16, samples(), 0)
    assert found.passed, found.reason
    assert not found.evaluated


def test_fixed_statistics_allow_no_rounding_where_both_compute_in_float32() -> None:
    found = technique(Steps(build(normalised(depth=24), mean)), BF16, Counted(samples(), 8))
    assert not found.passed
    assert "(at most 0.001)" in found.reason


FP32 = Plan(values={"precision": "fp32"})


def test_two_orders_of_one_arithmetic_are_compared_with_fixed_statistics_too() -> None:
    """Compiled code rounds elsewhere. The plan below stands for it: it rounds, and the reference does not."""
    batch = Counted(samples(), 8)
    found = technique(Steps(build(normalised(depth=24), mean)), BF16, batch, reference=FP32, rounded=True)
    assert found.passed, found.reason
    assert "in float32 too when the weights are rounded" in found.reason
    assert "or 2 times the second" in found.reason


def test_another_order_that_loses_the_digits_of_the_loss_is_refused() -> None:
    make = build(with_large_outputs(depth=24), cancelling)
    assert not technique(Steps(make), BF16, Counted(samples(), 8), reference=FP32, rounded=True).passed
