"""Optimizer states: what is offered and refused, what is applied, and what a search does with it."""

import copy
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.optimizer_states import EIGHT_BITS, KNOB, SMALLEST, OptimizerStates, quantizes
from autofit.workloads.step import Draft, static_bytes
from tests.strategies import low_bit_models
from tests.strategies.low_bit_models import (
    ADAMS,
    adamw,
    check_saved_state_continues,
    check_training_follows,
    draft,
    losses,
    low_bit,
    plain,
)

STRATEGY = OptimizerStates()
torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Hides that no C++ compiler is found in tests, and runs what is compiled as it is: kernels take seconds."""
    found = patch("autofit.strategies.optimizer_states.missing_tool", lambda: None)
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


def test_without_the_library_the_reason_names_the_extra_that_installs_it() -> None:
    with patch("importlib.util.find_spec", lambda name: None):
        (reason,) = reasons(draft())
        assert "pip install '.[torchao]'" in reason
        plan = Plan(values={KNOB: EIGHT_BITS})
        with pytest.raises(SpaceError, match="is not installed"), STRATEGY.apply(plan, draft()):
            pass


@torchao
def test_the_offer_needs_states_that_matter() -> None:
    made = draft()
    (knob,) = STRATEGY.offer(facts(made)).knobs
    assert knob.values == ("default", EIGHT_BITS)
    small = draft(lambda params: adamw([{**group, "params": group["params"][1:]} for group in params[1:]]))
    assert "quantizes no states" in " ".join(reasons(small))
    assert "hardly change what fits" in " ".join(reasons(made, memory_budget_bytes=2**30))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda params: torch.optim.SGD(params, lr=0.1), "found SGD"),
        (torch.optim.NAdam, "found NAdam"),
        (lambda params: torch.optim.AdamW(params, amsgrad=True), "no amsgrad"),
        (lambda params: torch.optim.AdamW(params, maximize=True), "no maximize"),
        (lambda params: torch.optim.AdamW(params, capturable=True), "no capturable"),
        (lambda params: torch.optim.AdamW(params, differentiable=True), "no differentiable"),
    ],
)
def test_what_no_library_can_do_is_refused(make: Any, words: str) -> None:
    assert words in reasons(draft(make))[0]


def test_unusual_models_and_parameters_are_refused() -> None:
    def reason(model: nn.Module) -> str:
        return reasons(replace(draft(), model=model, optimizer=adamw(model.parameters())))[0]

    assert "sparse" in reason(nn.Embedding(4, 4, sparse=True))
    assert "torch.float16" in reason(nn.Linear(2, 2).half())
    images = nn.Conv2d(3, 8, 3)
    images.weight.data = images.weight.data.to(memory_format=torch.channels_last)
    assert "not contiguous" in reason(images)
    made = draft()
    assert made.optimizer is not None
    made.optimizer.register_step_post_hook(lambda *arguments: None)
    assert "hooks" in reasons(made)[0]


def test_a_library_that_cannot_be_imported_is_refused_with_its_error() -> None:
    def broken() -> Any:
        raise ImportError("no symbol")

    with (
        patch("importlib.util.find_spec", lambda name: object()),
        patch("autofit.strategies.optimizer_states._torchao", broken),
    ):
        found = reasons(draft())
    assert found[0].startswith("torchao cannot be imported (no symbol): pip install")


def test_a_device_or_compiler_that_is_missing_has_a_reason() -> None:
    assert "generates no code" in reasons(draft(), capabilities=frozenset())[0]
    with patch("autofit.strategies.optimizer_states.missing_tool", lambda: "found no C++ compiler"):
        assert reasons(draft()) == ["found no C++ compiler"]
    broken = patch("autofit.strategies.optimizer_states._torchao", side_effect=ImportError("no such symbol"))
    with patch("importlib.util.find_spec", lambda name: object()), broken:
        assert "no such symbol" in reasons(draft())[0]


def test_settings_that_a_library_does_not_have_are_refused() -> None:
    made = draft()
    StepLR(made.optimizer, 1)  # type: ignore[arg-type]  # it has one
    assert STRATEGY.offer(facts(made)).knobs
    OneCycleLR(made.optimizer, max_lr=0.1, total_steps=3)  # type: ignore[arg-type]  # it has one
    assert "beta1" in reasons(made)[0]


def test_small_parameters_stay_float32() -> None:
    sizes = [torch.zeros(size) for size in (4096, 4095, 4097, 3840)]
    assert [*map(quantizes, sizes)] == [True, False, False, False]


@torchao
def test_existing_moments_are_quantized_and_the_training_goes_on() -> None:
    made, other = draft(), draft()
    losses(plain(made), 5)
    losses(plain(other), 5)
    optimizer: Any = made.optimizer
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    with low_bit(EIGHT_BITS, made):
        assert all(moment.numel() for moment in moments)
        found = losses(plain(made), 1)
        assert [moment.numel() for moment in moments] == [0, 0, 256, 64]  # the memory of what was quantized is free
        found += losses(plain(made), 4)
    assert found == pytest.approx(losses(plain(other), 5), rel=0.05, abs=5e-3)
    assert {float(state["step"]) for state in optimizer.state.values()} == {10.0}
    assert all(state["exp_avg"] is moment for state, moment in zip(optimizer.state.values(), moments, strict=True))


@torchao
def test_a_checkpoint_that_is_loaded_keeps_its_tensors() -> None:
    made, other = draft(), draft()
    losses(plain(other), 2)
    optimizer: Any = made.optimizer
    theirs: Any = other.optimizer
    saved = theirs.state_dict()
    kept = [state["exp_avg"].clone() for state in saved["state"].values()]
    with low_bit(EIGHT_BITS, made):
        optimizer.load_state_dict(saved)
        losses(plain(made), 1)
    for state, moment in zip(saved["state"].values(), kept, strict=True):
        if moment.numel() >= SMALLEST:  # torch shares the others with the checkpoint
            assert torch.equal(state["exp_avg"], moment)


@torchao
@pytest.mark.parametrize("name", ADAMS)
def test_training_follows_the_curve_of_the_plain_optimizer(name: str) -> None:
    check_training_follows(EIGHT_BITS, ADAMS[name])


@torchao
@pytest.mark.parametrize("prepared_first", [True, False])
def test_a_saved_state_continues_the_training_bit_for_bit(prepared_first: bool) -> None:
    check_saved_state_continues(EIGHT_BITS, prepared_first=prepared_first)


@torchao
def test_moments_take_one_byte_and_a_scale_for_each_block() -> None:
    made = draft()
    optimizer: Any = made.optimizer
    with low_bit(EIGHT_BITS, made):
        losses(plain(made), 1)
        moments = optimizer.state[made.model[0].weight]["exp_avg"]  # type: ignore[index]
        names, _ = moments.__tensor_flatten__()
        sizes = {name: getattr(moments, name).nbytes for name in names}
    assert sizes == {"codes": 16384, "scale": 4 * 64, "qmap": 4 * 256}


@torchao
def test_a_scheduler_changes_the_learning_rate_of_the_update_and_counts_its_steps() -> None:
    made = draft()
    optimizer: Any = made.optimizer
    before = StepLR(optimizer, 1, 1.0)
    own = vars(optimizer)["step"]
    with low_bit(EIGHT_BITS, made):
        made.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
        step = plain(made)
        losses(step, 1)
        before.step()
        weights = copy.deepcopy(made.model.state_dict())
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        losses(step, 1)
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert vars(optimizer)["step"] is own


@torchao
def test_a_closure_is_evaluated_with_gradients() -> None:
    made = draft()
    optimizer: Any = made.optimizer
    with low_bit(EIGHT_BITS, made):
        assert optimizer.step(torch.is_grad_enabled) is True


@torchao
@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_the_compiled_update_trains_like_the_uncompiled_one() -> None:
    made, other = draft(), draft()
    with torch.compiler.set_stance("default"), low_bit(EIGHT_BITS, made):
        found = losses(plain(made), 5)
    with low_bit(EIGHT_BITS, other):
        assert found == pytest.approx(losses(plain(other), 5), rel=1e-3)


@torchao
def test_static_memory_shrinks_by_what_the_states_free() -> None:
    plain = prepare(Plan(), draft(), members())
    losses(plain, 2)
    with prepare(Plan(values={KNOB: EIGHT_BITS}), draft(), members()) as step:
        losses(step, 2)
        freed = static_bytes(plain) - static_bytes(step)
    weights, blocks, maps = 2 * 16384, 2 * 16384 // 256, 2 * 2 * 4 * 256
    assert 6 * weights - 2 * 4 * blocks - maps <= freed <= 6 * weights - 2 * 4 * blocks


@torchao
def test_a_plan_says_that_it_cannot_be_traced_and_what_it_conflicts_with() -> None:
    plan = Plan(values={KNOB: EIGHT_BITS})
    assert STRATEGY.conflict(plan) is None
    assert "a probe measures" in str(STRATEGY.untraceable(plan))
    assert STRATEGY.untraceable(Plan(values={KNOB: "default"})) is None
    both = Plan(values={KNOB: EIGHT_BITS, "optimizer_implementation": "fused"})
    assert "either" in str(STRATEGY.conflict(both))
    inside = Plan(values={KNOB: EIGHT_BITS, "optimizer_in_backward": True})
    assert "after the backward pass" in str(STRATEGY.conflict(inside))


@torchao
def test_a_gradient_scaler_divides_before_the_update() -> None:
    """A fused optimizer of torch would divide by the scale itself."""
    made = draft(lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True))
    other = draft()
    for each in (made, other):
        each.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with prepare(Plan(values={KNOB: EIGHT_BITS}), made, members()) as step:
        assert vars(step.optimizer)["_step_supports_amp_scaling"] is False
        found = losses(step, 10)
    assert found == pytest.approx(losses(prepare(Plan(), other, []), 10), rel=0.05, abs=5e-3)


@pytest.mark.slow
@torchao
def test_a_search_uses_it_where_only_it_fits_and_leaves_the_optimizer_bit_identical() -> None:
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
        pinned={KNOB: EIGHT_BITS},
        numerics="any",
        study=":memory:",
        progress=False,
        device="cpu",
    )
    assert fit.plan.values[KNOB] == EIGHT_BITS
    assert fit.proof.memory.allocated_bytes < 62 * 2**20
    now = {id(moment): moment for state in optimizer.state.values() for moment in state.values()}
    assert now.keys() == kept.keys()
    assert all(torch.equal(now[key], moment) for key, moment in kept.items())
    step = fit.prepare(model, DataLoader(data, batch_size=4), optimizer)
    found = [float(step(part)) for part in step.loader]
    step.close()
    assert all(loss > 0 for loss in found)
    assert {moment.dtype for state in optimizer.state.values() for moment in state.values()} == {torch.float32}
