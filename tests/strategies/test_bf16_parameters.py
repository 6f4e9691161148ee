"""bfloat16 parameters: the gradient of bf16 autocast, half the bytes, rounding that keeps small updates, the undo."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.workload_facts import static_bytes
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.bf16_parameters import Bf16Parameters
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.strategies import low_bit_models
from tests.strategies.low_bit_models import RULE, adamw, batch, draft, losses

STRATEGY = Bf16Parameters()
CAST = Plan(values={"precision": "bf16"})
ON = Plan(values={"precision": "bf16", "bf16_parameters": True})
LOW = Plan(values={**ON.values, "optimizer_states": "torchao-8bit"})
installed = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Hides that no C++ compiler is found in tests, and runs what is compiled as it is: kernels take seconds."""
    found = patch("autofit.strategies.torchao_adam.missing_tool", lambda: None)
    with found, torch.compiler.set_stance("force_eager"):
        yield


def step(made: Draft, plan: Plan) -> TrainStep:
    return prepare(plan, made, members())


def weights(made: Draft) -> list[torch.Tensor]:
    return [p for p in made.model.parameters() if p.dim() > 1]


def facts(made: Draft, **changes: Any) -> Facts:
    return low_bit_models.facts(made, "bf16", "compiled code", **changes)


def reason(made: Draft, **changes: Any) -> str:
    offer = STRATEGY.offer(facts(made, **changes))
    assert offer.knobs == ()
    return offer.refused[0].reason


def test_what_is_missing_is_named() -> None:
    made = draft()
    assert "numerics='any'" in reason(made, numerics="mixed")
    assert "inference" in reason(made, optimizer=None)
    assert "does not compute in bf16" in reason(made, capabilities=frozenset(("compiled code",)))
    with patch("importlib.util.find_spec", lambda name: None):
        assert ".[torchao]" in reason(made)
        with pytest.raises(SpaceError, match="torchao is not installed"), STRATEGY.apply(ON, made):
            pass


def test_other_precisions_and_other_updates_conflict() -> None:
    def conflicts(**values: Any) -> list[str]:
        plan = Plan(values={**ON.values, **values})
        return [found for member in members() if (found := member.conflict(plan)) is not None]

    assert conflicts() == []
    assert conflicts(optimizer_states="torchao-8bit") == []
    assert "bf16 autocast" in conflicts(precision="fp32")[0]
    assert "after the backward pass" in conflicts(optimizer_in_backward=True)[0]
    assert "either" in conflicts(optimizer_implementation="fused")[0]
    assert "does not round" in conflicts(optimizer_states="bitsandbytes-8bit")[0]
    assert "a probe measures" in str(STRATEGY.untraceable(ON))
    assert STRATEGY.untraceable(CAST) is None


@installed
def test_weights_must_matter_and_be_their_own() -> None:
    made = draft()
    assert STRATEGY.offer(facts(made)).knobs[0].values == (False, True)
    assert "hardly change what fits" in reason(made, memory_budget_bytes=2**30)
    tied = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))
    tied[1].weight = tied[0].weight
    assert "no linear layer" in reason(replace(made, model=tied, optimizer=adamw(tied.parameters())))


@installed
def test_loss_and_gradient_are_those_of_bf16_autocast_bit_for_bit() -> None:
    made, other = draft(), draft()
    with step(made, ON) as on, step(other, CAST) as cast:
        parts = StepBatch.of([batch()])
        assert torch.equal(on.backward(parts), cast.backward(parts))
        for mine, theirs in zip(made.model.parameters(), other.model.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert mine.grad.dtype == mine.dtype
            assert torch.equal(mine.grad.float(), theirs.grad)
    assert {p.grad.dtype for p in made.model.parameters() if p.grad is not None} == {torch.float32}
    for mine, theirs in zip(made.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)  # without a step, nothing was rounded


@installed
@pytest.mark.parametrize("plan", [ON, LOW], ids=["float32 moments", "8-bit moments"])
def test_training_follows_the_curve_of_bf16_autocast_and_ends_in_float32(plan: Plan) -> None:
    made, other = draft(), draft()
    with step(other, CAST) as cast:
        expected = losses(cast, 20)
    objects = [id(p) for p in made.model.parameters()]
    with step(made, plan) as on:
        found = losses(on, 20)
        assert {p.dtype for p in weights(made)} == {torch.bfloat16}
        trained = [weight.float() for weight in weights(made)]
    assert expected[-1] < 0.1 * expected[0]
    assert found == pytest.approx(expected, rel=0.1, abs=0.02)
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}
    assert [id(p) for p in made.model.parameters()] == objects
    assert all(map(torch.equal, weights(made), trained))
    assert made.optimizer is not None
    moments = [state[name] for state in made.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {(type(moment), moment.dtype) for moment in moments} == {(torch.Tensor, torch.float32)}
    assert losses(step(made, CAST), 1)[0] == pytest.approx(losses(step(other, CAST), 1)[0], rel=0.1, abs=0.02)


@installed
def test_static_memory_halves_for_weights_and_shrinks_further_with_8_bit_moments() -> None:
    found = {}
    for name, plan in {"cast": CAST, "on": ON, "low": LOW}.items():
        with step(draft(), plan) as made:
            losses(made, 2)
            found[name] = static_bytes(made)
    elements = 2 * 16384
    assert found["cast"] - found["on"] == 2 * elements
    scales_and_maps = 2 * 4 * elements // 256 + 2 * 2 * 4 * 256
    assert found["on"] - found["low"] == 6 * elements - scales_and_maps


@installed
def test_updates_that_are_too_small_for_bfloat16_are_kept_on_average() -> None:
    """Each step moves a weight of 1 by 1e-4; bfloat16 has steps of 4e-3 there, so rounding to nearest stands still."""
    layer = nn.Linear(64, 64, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4, weight_decay=0.0)
    made = replace(draft(), model=layer, optimizer=optimizer)
    made.loss = replace(made.loss, compute=lambda model, data: model(data[0]).float().sum() * 1e-3)
    data = torch.ones(4, 64)
    torch.manual_seed(0)
    with step(made, ON) as on:
        for _ in range(50):
            on((data, data))
    assert float(layer.weight.detach().mean()) == pytest.approx(1 - 50 * 1e-4, abs=1e-3)


@installed
@pytest.mark.parametrize("autocast", [False, True])
def test_the_model_can_be_evaluated_between_steps(autocast: bool) -> None:
    made = draft()
    inputs, _ = batch()
    with step(made, ON) as on, torch.no_grad():
        with torch.enable_grad():
            losses(on, 1)
        around: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        with around:
            found = made.model(inputs)
        assert found.dtype == (torch.bfloat16 if autocast else torch.float32)
    assert found.float() == pytest.approx(made.model(inputs).detach(), abs=0.05)


@installed
def test_blocks_share_their_compiled_code() -> None:
    """Code that is kept for each object would reach torch's limit of 8, after which nothing is compiled."""
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(12))
    made = Draft(blocks, RULE, adamw(blocks.parameters()), torch.device("cpu"))
    torch.compiler.reset()
    with step(made, ON), torch.compiler.set_stance("default"), torch.autocast("cpu", torch.bfloat16):
        counts = sys.modules["torch._dynamo.utils"].counters["stats"]
        before = counts["unique_graphs"]
        for block in blocks:
            compiled = torch.compile(block, backend="eager", fullgraph=True)
            assert compiled(torch.ones(4, 64)).dtype == torch.bfloat16
        assert counts["unique_graphs"] == before + 1
