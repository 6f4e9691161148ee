"""Optimizer states: what is offered and refused, what is applied, and what a search does with it."""

import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.workload_facts import static_bytes
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.optimizer_states import KNOB, LIBRARIES, OptimizerStates
from autofit.workloads.step import Draft
from tests.strategies import low_bit_models
from tests.strategies.low_bit_models import adamw, draft, losses

STRATEGY = OptimizerStates()
EACH = {
    value: pytest.param(
        value,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(library.library) is None, reason=f"{library.library} is not installed"
        ),
    )
    for value, library in LIBRARIES.items()
}
each_library = pytest.mark.parametrize("value", EACH.values())


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Hides that no C++ compiler is found in tests, and runs what is compiled as it is: kernels take seconds."""
    found = patch("autofit.strategies.torchao_adam.missing_tool", lambda: None)
    with found, torch.compiler.set_stance("force_eager"):
        yield


def facts(made: Draft, **changes: Any) -> Facts:
    return low_bit_models.facts(made, "compiled code", **changes)


def reasons(made: Draft, **changes: Any) -> list[str]:
    offer = STRATEGY.offer(facts(made, **changes))
    assert offer.knobs == ()
    return [refusal.reason for refusal in offer.refused]


def test_other_numerics_inference_and_other_optimizers_are_refused() -> None:
    made = draft()
    for numerics in ("exact", "mixed"):
        assert "numerics='any'" in reasons(made, numerics=numerics)[0]
    assert reasons(made, optimizer=None) == ["inference has no updates"]
    assert "found SGD" in reasons(draft(lambda params: torch.optim.SGD(params, lr=0.1)))[0]


def test_missing_libraries_are_refused_with_the_extra_that_installs_them() -> None:
    with patch("importlib.util.find_spec", lambda name: None):
        found = reasons(draft())
        assert len(found) == len(LIBRARIES)
        for reason, library in zip(found, LIBRARIES.values(), strict=True):
            assert f"pip install '.[{library.library}]'" in reason
        for value in LIBRARIES:
            plan = Plan(values={KNOB: value})
            with pytest.raises(SpaceError, match="is not installed"), STRATEGY.apply(plan, draft()):
                pass


@each_library
def test_the_offer_needs_states_that_matter(value: str) -> None:
    made = draft()
    (knob,) = STRATEGY.offer(facts(made)).knobs
    assert value in knob.values
    small = draft(lambda params: adamw([{**group, "params": group["params"][1:]} for group in params[1:]]))
    assert "quantizes no states" in " ".join(reasons(small))
    assert "hardly change what fits" in " ".join(reasons(made, memory_budget_bytes=2**30))


@each_library
def test_static_memory_shrinks_by_what_the_states_free(value: str) -> None:
    plain = prepare(Plan(), draft(), members())
    losses(plain, 2)
    with prepare(Plan(values={KNOB: value}), draft(), members()) as step:
        losses(step, 2)
        freed = static_bytes(plain) - static_bytes(step)
    weights, blocks, maps = 2 * 16384, 2 * 16384 // 256, 2 * 2 * 4 * 256
    assert 6 * weights - 2 * 4 * blocks - maps <= freed <= 6 * weights - 2 * 4 * blocks


@each_library
def test_a_plan_says_that_it_cannot_be_traced_and_what_it_conflicts_with(value: str) -> None:
    plan = Plan(values={KNOB: value})
    assert STRATEGY.conflict(plan) is None
    assert "a probe measures" in str(STRATEGY.untraceable(plan))
    assert STRATEGY.untraceable(Plan(values={KNOB: "default"})) is None
    both = Plan(values={KNOB: value, "optimizer_implementation": "fused"})
    assert "either" in str(STRATEGY.conflict(both))
    inside = Plan(values={KNOB: value, "optimizer_in_backward": True})
    assert "after the backward pass" in str(STRATEGY.conflict(inside))


@each_library
def test_a_gradient_scaler_divides_before_the_update(value: str) -> None:
    """A fused optimizer of torch would divide by the scale itself."""
    made = draft(lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True))
    other = draft()
    for each in (made, other):
        each.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with prepare(Plan(values={KNOB: value}), made, members()) as step:
        assert vars(step.optimizer)["_step_supports_amp_scaling"] is False
        found = losses(step, 10)
    assert found == pytest.approx(losses(prepare(Plan(), other, []), 10), rel=0.05, abs=5e-3)


@pytest.mark.slow
@each_library
def test_a_search_uses_it_where_only_it_fits_and_leaves_the_optimizer_bit_identical(value: str) -> None:
    """The usual step needs 64 MiB and more at any batch size; with 8-bit states, 40 MiB and what one update needs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(16)))
    data = TensorDataset(torch.randn(64, 512), torch.randn(64, 512))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    torch.autograd.backward(F.mse_loss(model(data.tensors[0]), data.tensors[1]))
    optimizer.step()
    optimizer.zero_grad()
    kept = {id(moment): moment.clone() for state in optimizer.state.values() for moment in state.values()}
    fit = autofit.tune(
        model,
        DataLoader(data, batch_size=4),
        loss_fn=F.mse_loss,
        optimizer=optimizer,
        memory_budget=62 * 2**20,
        strategies=["optimizer_states"],
        pinned={KNOB: value},
        numerics="any",
        study=":memory:",
        progress=False,
        device="cpu",
    )
    assert fit.plan.values[KNOB] == value
    assert fit.proof.memory.allocated_bytes < 62 * 2**20
    now = {id(moment): moment for state in optimizer.state.values() for moment in state.values()}
    assert now.keys() == kept.keys()
    assert all(torch.equal(now[key], moment) for key, moment in kept.items())
    step = fit.prepare(model, DataLoader(data, batch_size=4), optimizer)
    found = [float(step(part)) for part in step.loader]
    step.close()
    assert all(loss > 0 for loss in found)
    assert {moment.dtype for state in optimizer.state.values() for moment in state.values()} == {torch.float32}
