"""The gates let through what keeps the gradient, refuse what does not, and leave no trace (fault matrix F46)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gates import in_either_mode
from autofit.probing.survey.gradients import STATELESS, Build, Gradients
from autofit.strategies import members
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import SUM, Weighing
from autofit.workloads.step import Draft, TrainStep
from tests.probing import targets
from tests.probing.survey.comparing import accumulated, rounded

Loss = Callable[[nn.Module, Any], torch.Tensor]


def build(model: nn.Module, loss: Loss, max_grad_norm: float | None = None) -> Build:
    torch.optim.SGD(model.parameters())  # the first optimizer loads torch's compiler, which sets environment variables

    def make(plan: Plan) -> TrainStep:
        rule = LossRule("loss", loss, inferred=False, about="")
        optimizer = torch.optim.SGD(model.parameters())
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu"), max_grad_norm=max_grad_norm), members())

    return make


def mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def total(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def contrastive(model: nn.Module, batch: Any) -> torch.Tensor:
    """InfoNCE: each sample against all others of its batch."""
    first, second = F.normalize(model(batch[0])), F.normalize(model(batch[0] + 0.1))
    return F.cross_entropy(first @ second.T / 0.1, torch.arange(len(first)))


def balanced(model: nn.Module, batch: Any) -> torch.Tensor:
    """The balance term of a mixture of experts: a square of a mean over the batch."""
    return mean(model, batch) + F.softmax(model(batch[0]), 1).mean(0).square().sum()


def norm(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm1d(16),
        "layer": lambda: nn.LayerNorm(16),
        "group": lambda: nn.GroupNorm(4, 16),
        "dropout": lambda: nn.Dropout(0.5),
        "frozen": lambda: nn.BatchNorm1d(16).eval(),
        "by hand": lambda: ByHand(16),
        "none": nn.Identity,
    }
    return nn.Sequential(nn.Linear(8, 16), layers[kind](), nn.ReLU(), nn.Linear(16, 4))


class ByHand(nn.Module):
    """Batch normalisation as people write it themselves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))
        self.mean: torch.Tensor
        self.variance: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.variance.lerp_(variance, 0.1)
        return self.gain * (x - mean) / (variance + 1e-5).sqrt()


def in_training(loss: Loss) -> Loss:
    """A loss of training; in evaluation it is a mean over samples."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model, batch) if model.training else mean(model, batch)

    return step


def vectors(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator)


@pytest.mark.parametrize("kind", ["none", "layer", "group", "dropout", "frozen"])
@pytest.mark.parametrize("size", [2, 8])
def test_accumulation_passes_where_samples_are_independent(kind: str, size: int) -> None:
    verdict = accumulated(build(norm(kind), mean), vectors(size), seed=0)
    assert verdict.passed, verdict.reason
    assert "accumulation gives the same gradient" in verdict.reason


@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("batch", mean),
        ("by hand", mean),
        ("none", contrastive),
        ("none", balanced),
        ("none", in_training(contrastive)),
        ("dropout", in_training(balanced)),
    ],
    ids=["batch norm", "batch norm by hand", "contrastive", "balance", "in training", "balance in training"],
)
@pytest.mark.parametrize("size", [4, 8])
def test_accumulation_is_refused_where_samples_meet(kind: str, loss: Loss, size: int) -> None:
    verdict = accumulated(build(norm(kind), loss), vectors(size), seed=0)
    assert not verdict.passed
    assert "accumulation changes the gradient of this model: relative L2" in verdict.reason
    assert "at most 0.001" in verdict.reason


def standardised(model: nn.Module, batch: Any) -> torch.Tensor:
    """Weighs samples by targets in units of the batch's deviation, as PPO does with advantages."""
    scale = (batch[1].float() - batch[1].float().mean()) / (batch[1].float().std() + 1e-8)
    loss: torch.Tensor = (model(batch[0]).mean(1) * scale).mean()
    return loss


@pytest.mark.filterwarnings("ignore:std")
def test_a_deviation_over_the_batch_is_asked_about_with_halves_not_with_single_samples() -> None:
    torch.manual_seed(0)
    verdict = accumulated(build(norm("group"), standardised), vectors(), seed=0)
    assert not verdict.passed
    assert "nan" not in verdict.reason
    assert "accumulation changes the gradient of this model: relative L2" in verdict.reason


def test_a_sum_is_recognised_by_the_norm_alone() -> None:
    """All samples alike: the direction is right, only the length is not."""
    inputs, labels = vectors(1)
    alike = inputs.expand(4, -1).clone(), labels.expand(4).clone()
    found = accumulated(build(norm("none"), mean), alike, seed=0)
    assert found.passed
    assert found.weighing is None
    verdict = accumulated(build(norm("none"), total), alike, seed=0)
    assert verdict.weighing == SUM
    assert "norm ratio 0.2500" in verdict.reason


def tokens(lengths: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return targets.pad([torch.arange(1, length + 1) % 31 + 1 for length in lengths])


UNEVEN = [(3, 24), (3, 24, 24, 3), (24, 3, 3, 24, 3, 24, 24, 3)]


@pytest.mark.parametrize("lengths", UNEVEN)
def test_a_mean_over_tokens_of_uneven_samples_is_kept_by_weighing_tokens(lengths: tuple[int, ...]) -> None:
    """D10, also where both halves of the batch have as many tokens; weights by samples are off by more than half."""
    verdict = accumulated(build(targets.Transformer(), targets.token_mean), tokens(lengths), seed=0)
    assert verdict.passed, verdict.reason
    assert verdict.weighing == Weighing("['labels']", ignored=-100)
    assert "micro batches weighted by batch['labels'] != -100: relative L2" in verdict.reason
    found = accumulated(build(targets.Transformer(), targets.sample_mean), tokens(lengths), seed=0)
    assert found.passed
    assert found.weighing is None


def test_a_mean_over_tokens_of_even_samples_passes() -> None:
    assert accumulated(build(targets.Transformer(), targets.token_mean), tokens((6, 6, 6, 6)), seed=0).passed


def test_a_model_in_16_bits_is_allowed_its_own_rounding_and_nothing_else() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0].bfloat16(), batch[1])).float()

    verdict = accumulated(build(norm("none").bfloat16(), step), vectors(), seed=0)
    assert verdict.passed, verdict.reason
    assert "at most 0.05" in verdict.reason
    assert not accumulated(build(norm("batch").bfloat16(), step), vectors(), seed=0).passed


def test_a_zero_gradient_shows_nothing() -> None:
    verdict = accumulated(build(norm("none"), lambda model, batch: 0.0 * mean(model, batch)), vectors(), seed=0)
    assert not verdict.passed
    assert "the gradient is zero" in verdict.reason


def test_parameters_that_only_some_samples_reach_count_as_zero() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flags = x[:, 0] > 0
            output = torch.zeros(len(x), 4)
            if flags.any():
                output[flags] = self.one(x[flags])
            if (~flags).any():
                output[~flags] = self.two(x[~flags])
            return output

    verdict = accumulated(build(Routed(), mean), vectors(), seed=0)
    assert verdict.passed, verdict.reason


BF16, FP16 = Plan(values={"precision": "bf16"}), Plan(values={"precision": "fp16"})


def test_bf16_passes_on_a_transformer() -> None:
    verdict = rounded(build(targets.Transformer(), targets.token_mean), BF16, tokens((6,) * 8), seed=0)
    assert verdict.passed, verdict.reason
    assert "cosine of the gradient 0.999" in verdict.reason


def test_a_cosine_that_rounding_takes_beyond_1_is_shown_as_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.functional, "cosine_similarity", lambda *_, dim: torch.tensor(1.00001))
    verdict = rounded(build(targets.Transformer(), targets.token_mean), BF16, tokens((6,) * 8), seed=0)
    assert "cosine of the gradient 1.00000 " in verdict.reason


class Overflowing(nn.Module):
    """Its activations are beyond what fp16 can say, and harmless in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.second(self.first(x * 1e5) * 1e-5)
        return output


def test_a_model_that_overflows_in_fp16_is_refused() -> None:
    verdict = rounded(build(Overflowing(), mean), FP16, vectors(), seed=0)
    assert not verdict.passed
    assert verdict.reason == "the gradient is not finite"
    assert rounded(build(Overflowing(), mean), BF16, vectors(), seed=0).passed


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


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.named_parameters()}
    generator = torch.get_rng_state()
    yield
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(value, weights[name]) for name, value in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


def test_modes_weights_random_numbers_and_gradients_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16).eval(), nn.Linear(16, 4))

    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]))

    with unchanged(model):
        accumulated(build(model, noisy, max_grad_norm=1.0), vectors(), seed=0)
    with unchanged(model):
        rounded(build(model, noisy), BF16, vectors(), seed=0)


def test_modes_are_back_after_a_failure() -> None:
    model = norm("dropout")

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        raise KeyError("labels")

    with pytest.raises(KeyError):
        accumulated(build(model, broken), vectors(), seed=0)
    assert all(module.training for module in model.modules())


def test_the_same_random_numbers_are_drawn_on_both_sides() -> None:
    """Noise that a model adds itself would otherwise hide what is asked about."""

    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        return mean(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))

    verdict = rounded(build(norm("none"), noisy), BF16, vectors(), seed=0)
    assert verdict.passed
    torch.manual_seed(99)  # whatever the user drew before
    assert rounded(build(norm("none"), noisy), BF16, vectors(), seed=0) == verdict
    assert rounded(build(norm("none"), noisy), BF16, vectors(), seed=1) != verdict


def test_a_step_that_empties_its_batch_can_be_asked_twice() -> None:
    def pops(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch.pop("x")), batch.pop("y"))

    batch = dict(zip(("x", "y"), vectors(), strict=True))
    assert accumulated(build(norm("none"), pops), batch, seed=0).passed
    assert rounded(build(norm("none"), pops), BF16, batch, seed=0).passed
    assert batch.keys() == {"x", "y"}


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


def compared(model: nn.Module) -> GateResult:
    rule = LossRule("step_fn", lambda model, batch: model(batch), False, "")

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cpu")), [])

    def compare(gradients: Gradients) -> GateResult:
        with gradients:
            norm = float(gradients.rehearse(ONES, 0).vector.norm())
        return GateResult(norm > 0, f"norm {norm:.1f}")

    return in_either_mode(build, STATELESS, compare)


def test_evaluation_mode_comes_first_and_is_enough() -> None:
    model = Moody()
    assert compared(model).reason == "norm 4.0"
    assert model.seen == [False]


def test_a_step_that_fails_in_it_is_compared_in_training_mode() -> None:
    model = Moody(False)
    found = compared(model)
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
    assert model.seen == [False, True]


def test_a_step_that_fails_in_both_raises() -> None:
    with pytest.raises(RuntimeError, match="no loss with training=True"):
        compared(Moody(False, True))
