"""The gate of a whole step: what keeps the gradients of every update passes, and what changes one of them does not."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from autofit.core.plan import Plan
from autofit.gates.compare import ZERO
from autofit.gates.gradients import Steps
from autofit.gates.technique import output, update
from autofit.gates.verdict import GateVerdict
from autofit.guard import Guard
from autofit.prepare import prepare
from autofit.probing.survey import uneven_steps
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import Workload
from tests.digests import digest_in
from tests.probing import targets
from tests.workloads import gans

BF16, CHANGED = Plan(values={"precision": "bf16"}), Plan(values={"scaling": True})


class Scaling(Strategy):
    """A fake technique that scales what one of the two models computes."""

    name, phase, owns, fits_update_fn = "scaling", Phase.MODULES, {"scaling": None}, True

    def __init__(self, which: str, factor: float) -> None:
        self.which, self.factor = which, factor

    def offer(self, facts: Facts) -> Offer:
        raise AssertionError("not asked")

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        if plan.values.get(self.name) is not True:
            yield
            return
        model = draft.model.get_submodule(self.which)
        hook = model.register_forward_hook(lambda module, args, output: self.factor * output)
        try:
            yield
        finally:
            hook.remove()


class Bench:
    """The gate's view of a workload: steps of plans, and a state that is restored."""

    def __init__(self, workload: Workload, *more: Strategy) -> None:
        self.workload, self.more = workload, more
        self.guard = Guard.of(workload)
        self.steps = Steps(self.build, 3, self.guard.restore, self.guard.differences)
        self.batch = Counted((torch.randn(8, gans.WIDTH, generator=torch.Generator().manual_seed(5)),), 8)

    def build(self, plan: Plan) -> TrainStep:
        assert self.workload.update_fn is not None
        draft = Draft.of(self.workload, rule_of_update(self.workload.update_fn), torch.device("cpu"))
        return prepare(plan, draft, (*members(), *self.more))

    def update(self, plan: Plan) -> GateVerdict:
        return update(self.steps, plan, self.batch, rounded=True)

    def same(self, plan: Plan, **more: Any) -> GateVerdict:
        return update(self.steps, plan, self.batch, **more)


def bench(update_fn: Callable[..., Any] = gans.update, *more: Strategy) -> Bench:
    return Bench(gans.workload(update_fn=update_fn), *more)


@pytest.mark.parametrize("values", [{"checkpointed_blocks": 4}, {"optimizer_implementation": "fused"}])
def test_another_order_of_operations_passes(values: dict[str, Any]) -> None:
    found = bench().same(Plan(values=values))
    assert found.passed, found.reason
    assert found.reason.startswith("relative L2 of the gradient of an update ")


@pytest.mark.parametrize("which", ["critic", "generator"])
def test_a_change_of_either_model_is_found(which: str) -> None:
    asked = bench(gans.update, Scaling(which, 1.2))
    assert not asked.same(CHANGED).passed
    assert not asked.update(CHANGED).passed


def test_the_rounding_of_16_bits_is_allowed_where_it_is_asked_for() -> None:
    slightly = bench(gans.update, Scaling("critic", 1.005))
    assert not slightly.same(CHANGED).passed
    assert slightly.same(CHANGED, rounded=True).passed
    assert slightly.update(CHANGED).passed


def test_bfloat16_is_judged_by_the_gradients_of_both_optimizers() -> None:
    found = bench().update(BF16)
    assert "cosine of the gradient of an update" in found.reason


def stale(models: nn.ModuleDict, optimizers: Mapping[str, Optimizer], batch: Any) -> torch.Tensor:
    """Uses the critic's graph after its update, which recomputing would replace by that of the new weights."""
    real, critic = batch[0], models["critic"]
    before: torch.Tensor = critic(real).mean()
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.data.add_(0.1)  # as an in-place change that autograd does not see
    optimizers["critic"].zero_grad()
    torch.autograd.backward(before)
    optimizers["critic"].step()
    return before


def test_blocks_that_would_be_recomputed_with_new_weights_are_found() -> None:
    assert not bench(stale).same(Plan(values={"checkpointed_blocks": 4})).passed


def test_everything_is_restored() -> None:
    asked = bench()
    before = digest_in(asked.guard)
    asked.update(BF16)
    asked.same(Plan(values={"checkpointed_blocks": 4}))
    assert digest_in(asked.guard) == before


def test_a_gradient_of_zero_is_no_verdict() -> None:
    def flat(models: nn.ModuleDict, optimizers: Mapping[str, Optimizer], batch: Any) -> torch.Tensor:
        loss: torch.Tensor = 0.0 * models["critic"](batch[0]).sum()
        optimizers["critic"].zero_grad()
        torch.autograd.backward(loss)
        optimizers["critic"].step()
        return loss

    assert bench(flat).update(BF16) is ZERO
    assert bench(flat).same(Plan(values={"checkpointed_blocks": 4})) is ZERO


def test_a_step_without_an_update_cannot_be_checked() -> None:
    found = bench(lambda models, optimizers, batch: models["critic"](batch[0]).mean()).update(BF16)
    assert (found.passed, found.compared) == (False, False)
    assert "no optimizer was stepped" in found.reason


def test_numbers_that_no_seed_repeats_are_not_held_against_a_technique() -> None:
    drawn = torch.Generator()
    drawn.seed()
    asked = bench()

    def noisy(models: nn.ModuleDict, optimizers: Mapping[str, Optimizer], batch: Any) -> torch.Tensor:
        loss: torch.Tensor = F.mse_loss(models["critic"](torch.randn(8, gans.WIDTH, generator=drawn)), batch[0][:, :1])
        optimizers["critic"].zero_grad()
        torch.autograd.backward(loss)
        optimizers["critic"].step()
        return loss

    asked.workload = gans.workload(update_fn=noisy)  # the guard does not know the generator
    asked.guard = Guard(asked.workload.model, asked.workload.optimizer)  # type: ignore[arg-type]
    asked.steps = Steps(asked.build, 3, asked.guard.restore, asked.guard.differences)
    found = asked.same(Plan(values={"checkpointed_blocks": 4}))
    assert (found.passed, found.compared) == (False, False)
    assert "two steps from the same state and seed have different gradients" in found.reason


class Twice(Scaling):
    """A fake technique that does the whole step twice."""

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        rule = draft.loss
        if plan.values.get(self.name) is True:
            draft.loss = replace(rule, update=self.doubled(rule.update))
        yield
        draft.loss = rule

    def doubled(self, update: Any) -> Callable[..., Any]:
        def both(*arguments: Any) -> Any:
            update(*arguments)
            return update(*arguments)

        return both


def test_another_number_of_updates_is_named() -> None:
    found = bench(gans.update, Twice("critic", 1.0)).same(CHANGED)
    assert (found.passed, found.compared) == (False, True)
    assert found.reason == "gradient of an update: 4 instead of 2, or of other shapes"


def test_steps_that_make_the_same_updates_are_even() -> None:
    asked = bench()
    before = digest_in(asked.guard)
    assert uneven_steps(asked.steps, asked.batch) == []
    assert digest_in(asked.guard) == before


@pytest.mark.parametrize("first", [True, False])
def test_a_model_that_is_trained_in_some_steps_only_is_a_caveat(first: bool) -> None:
    calls: list[int] = []

    def alternating(models: nn.ModuleDict, optimizers: Mapping[str, Optimizer], batch: Any) -> torch.Tensor:
        calls.append(1)
        if (len(calls) % 5 == 1) is first:
            gans.update(models, optimizers, batch)
        return stale(models, optimizers, batch)

    asked = bench(alternating)
    (caveat,) = uneven_steps(asked.steps, asked.batch)
    assert "with 2 optimizers: peak and speed are those of the calls that were run" in caveat
    assert calls == []


def test_an_optimizer_that_is_never_stepped_is_a_caveat() -> None:
    (caveat,) = uneven_steps((asked := bench(stale)).steps, asked.batch)
    assert caveat.startswith("two calls of update_fn made 1 and 1 updates, with 2 optimizers")


class Cancelling(nn.Module):
    """The difference of two values that are nearly equal: bfloat16 keeps none of its digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x + 1000.0) - self.layer(x + 1000.001)
        return found


class Moving(nn.Module):
    """Adds the number of its calls to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.layer(x) + 10.0 * self.calls
        return found


def asked(
    model: nn.Module, forward: Callable[..., Any] = lambda model, batch: model(batch), **more: Any
) -> GateVerdict:
    def build(plan: Plan) -> TrainStep:
        rule = LossRule("forward", forward, inferred=True, about="")
        return prepare(plan, Draft(model, rule, None, torch.device("cpu")), members())

    torch.manual_seed(0)
    return output(Steps(build, **more), BF16, Counted(torch.randn(4, 8), 4))


def test_a_rounded_output_passes_with_its_numbers() -> None:
    verdict = asked(targets.mlp().eval())
    assert verdict.passed
    assert verdict.reason.startswith("cosine of the output ")


def test_an_output_that_loses_its_digits_is_refused() -> None:
    verdict = asked(Cancelling())
    assert not verdict.passed
    assert "relative L2" in verdict.reason
    assert "numerics='any'" in verdict.reason


def masked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch)
    return found.masked_fill(torch.tensor([True, False, False, False]), -torch.inf)


@pytest.mark.parametrize(
    "forward",
    [
        lambda model, batch: {"logits": model(batch), "labels": torch.arange(4)},
        lambda model, batch: SimpleNamespace(logits=model(batch)),
        masked,
    ],
    ids=["mapping", "object", "masked"],
)
def test_outputs_of_every_structure_are_compared(forward: Callable[..., Any]) -> None:
    assert asked(targets.mlp(), forward).passed


def test_an_output_that_becomes_infinite_is_refused() -> None:
    def overflows(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(batch)
        return found if found.dtype == torch.float32 else found / 0.0

    assert not asked(targets.mlp(), overflows).passed


def test_classes_alone_cannot_be_compared() -> None:
    verdict = asked(targets.mlp(), lambda model, batch: model(batch).argmax(1))
    assert not verdict.passed
    assert verdict.reason.startswith("could not be checked: the output has no floating-point tensor")


def test_an_output_of_another_shape_is_refused() -> None:
    def drops(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(batch)
        return found if found.dtype == torch.float32 else found[:2]

    assert "other shapes" in asked(targets.mlp(), drops).reason


def test_dropout_in_evaluation_draws_the_same_numbers_for_both_and_none_of_the_users() -> None:
    torch.manual_seed(0)
    torch.randn(4, 8)
    expected = torch.randn(1)
    assert asked(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).train()).passed
    assert torch.equal(torch.randn(1), expected)


def test_a_model_that_moves_its_own_state_starts_from_the_same_state_and_is_put_back() -> None:
    model = Moving()

    def restore() -> None:
        model.calls = 0

    assert asked(model, restore=restore, differences=lambda: ["model.calls"] * bool(model.calls)).passed
    assert model.calls == 0
