"""A training that continues on several ranks with the optimizer's state of before, and leaves its own whole."""

import time
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.tensor import DTensor

from autofit import workloads
from autofit.core.errors import UsageError, WorkloadError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.optimizer_state import check_alike
from autofit.workloads.batch_algebra import split
from autofit.workloads.step import Draft, Ranks

pytest.importorskip("transformers")
from scripts.bench.memory.ranks import IN_ROWS, PROMISED, ROW_RANKS, SIZE, TENSOR, plan_of
from scripts.bench.ranks.launching import launched
from tests.ranks.test_gloo import distance, draft_of, parts_of

pytestmark = [pytest.mark.slow, pytest.mark.leaves("multiprocessing keeps a tracker of its resources")]
PLANS = {**PROMISED, **IN_ROWS, **TENSOR}
LAYOUTS = ("replicated", "optimizer", "full", "tensor")
OPTIMIZERS: dict[str, Any] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "amsgrad": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True, eps=1e-3),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True, eps=1e-3),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-2, eps=1e-3),  # has state from the beginning
}
ALONE = plan_of({})
STEPS = 3
CLOSE_TO_WAY = 1e-3
"""Largest distance of weights and state, as a share of how far some steps move them: what rounding makes of it."""


def states(draft: Draft) -> dict[str, torch.Tensor]:
    """Returns a copy of the weights and of each tensor of the optimizer's state, by name."""
    found = {name: parameter.detach().clone() for name, parameter in draft.model.named_parameters()}
    assert draft.optimizer is not None
    for name, parameter in draft.model.named_parameters():
        for key, value in draft.optimizer.state[parameter].items():
            assert type(value) is torch.Tensor
            found[f"{name}, {key}"] = value.clone()
    return found


def ran(draft: Draft, batch: Any, plan: Plan) -> dict[str, torch.Tensor]:
    """Trains some steps under a plan, and returns the weights and the state after it."""
    with prepare(plan, draft, members()) as step:
        for _ in range(STEPS):
            step(parts_of(batch, plan))
    return states(draft)


def continued(ranks: Ranks, optimizer: str, names: list[str]) -> list[tuple[float, float, float]]:
    """Trains in one process, then on ranks, then in one process again, and compares with one process alone.

    Returns how far weights and state are from its own after the second part and after the third, as shares of how far
    the second moves them, and how far that is.
    """

    def began() -> tuple[Draft, Any]:
        draft, batch = draft_of("llama", ranks.count)
        draft.optimizer, draft.max_grad_norm = OPTIMIZERS[optimizer](draft.model.parameters()), None
        ran(draft, batch, ALONE)
        return draft, batch

    draft, batch = began()
    second, third = ran(draft, batch, ALONE), ran(draft, batch, ALONE)
    found = []
    for name in names:
        draft, batch = began()
        first, mine = states(draft), split(batch, [SIZE] * ranks.count)[ranks.number]
        draft.ranks = ranks.in_rows(distributed.new_group) if name in IN_ROWS else ranks
        during = ran(draft, mine, plan_of(PLANS[name]))
        draft.ranks = None
        after, moved = ran(draft, batch, ALONE), distance(during, first)
        found.append((distance(during, second) / moved, distance(after, third) / moved, moved))
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_continues_under_each_layout_and_after_it_as_in_one_process(optimizer: str) -> None:
    for results in launched(continued, optimizer, LAYOUTS):
        for name, (during, after, moved) in zip(LAYOUTS, results, strict=True):
            assert max(during, after) <= CLOSE_TO_WAY, name
            assert moved > 0.01, name


def test_a_training_continues_in_rows() -> None:
    for results in launched(continued, "amsgrad", list(IN_ROWS), ranks=ROW_RANKS):
        for name, (during, after, moved) in zip(IN_ROWS, results, strict=True):
            assert max(during, after) <= CLOSE_TO_WAY, name
            assert moved > 0.01, name


def left(ranks: Ranks, layout: str, failing: list[int]) -> list[Any]:
    """Trains, and leaves the training by an error on some ranks, while the others go on as long as these live."""
    workloads.step.TOGETHER_S = 1.0
    draft, batch = draft_of("mlp", ranks.count)
    draft.ranks, plan = ranks, plan_of({"layout": layout})
    before, raised = [each.detach().clone() for each in draft.model.parameters()], ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with prepare(plan, draft, members()) as step:
                step(parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], plan))
                if ranks.number not in failing:
                    distributed.barrier()  # stands for a step, in which this rank waits for the others
                    raise ConnectionError("the others have gone")
                raise KeyError("of the user")
        except (KeyError, ConnectionError) as error:
            raised = type(error).__name__
    if len(failing) < ranks.count and ranks.number in failing:
        distributed.barrier()
    whole = [each for each in draft.model.parameters() if not isinstance(each, DTensor)]
    moved = len(whole) == len(before) and all(
        bool((now != then).any()) for now, then in zip(whole, before, strict=True)
    )
    return [raised, moved, len([each for each in said if "The model stays divided" in str(each.message)])]


@pytest.mark.parametrize("layout", ["optimizer", "full"])
def test_an_error_on_one_rank_alone_is_raised_at_once_and_on_all_ranks_brings_the_weights_together(layout: str) -> None:
    is_whole = layout == "optimizer"
    assert launched(left, layout, [0]) == [["KeyError", is_whole, 1], ["ConnectionError", is_whole, 1]]
    assert launched(left, layout, [0, 1]) == [["KeyError", True, 0]] * 2


def unlike(ranks: Ranks) -> list[str]:
    """Continues with an optimizer that has state on one rank only, and with one whose learning rates differ."""
    said = []
    for way in ("alike", "state", "rate"):
        draft, _ = draft_of("mlp", ranks.count)
        optimizer = torch.optim.AdamW(draft.model.parameters(), lr=0.1 + 0.1 * ranks.number * (way == "rate"))
        for parameter in draft.model.parameters() if way != "state" or ranks.number == 0 else ():
            optimizer.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": torch.ones_like(parameter)}
        try:
            check_alike(optimizer, ranks)
        except UsageError as error:
            said.append(str(error))
    return said


def test_ranks_that_continue_with_different_optimizers_are_told() -> None:
    first, second = launched(unlike)
    assert first == second
    state, rate = first
    assert "found that the state of the optimizer on rank 1 differs from that of rank 0" in state
    assert "settings, such as the learning rate, of the optimizer on rank 1" in rate


def failed_once(ranks: Ranks, changes: dict[str, Any]) -> float:
    """Trains a step that fails in its second micro batch, and a sound one; returns how far that is from the latter."""
    found = []
    for fails in (True, False):
        draft, batch = draft_of("mlp", ranks.count)
        draft.ranks, loss, failing = ranks, draft.loss, [False, True] if fails else []

        def compute(model: Any, part: Any, loss: Any = loss, failing: list[bool] = failing) -> Any:
            if failing and failing.pop(0):
                raise KeyError("of the user")
            return loss.compute(model, part)

        draft.loss = replace(loss, compute=compute)
        plan = plan_of({**changes, "accumulation_steps": 2})
        part = parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], plan)
        with prepare(plan, draft, members()) as step:
            for _ in range(1 + fails):
                with suppress(KeyError):
                    step(part)
        found.append({name: each.detach().clone() for name, each in draft.model.named_parameters()})
    return distance(*found)


@pytest.mark.parametrize(
    "changes", [{"layout": "replicated"}, {"layout": "full"}, {"layout": "full", "sync_each_batch": False}]
)
def test_a_step_that_failed_on_all_ranks_leaves_nothing_to_the_next_one(changes: dict[str, Any]) -> None:
    assert max(launched(failed_once, changes)) == 0.0


def frozen_later(ranks: Ranks) -> list[bool]:
    draft, batch = draft_of("mlp", ranks.count)
    draft.ranks = ranks
    with prepare(plan_of({"layout": "full"}), draft, members()) as step:
        next(step.model.parameters()).requires_grad_(False)
        step(parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], step.plan))
    return [each.requires_grad for each in draft.model.parameters()]


def test_what_was_frozen_in_a_sharded_training_stays_frozen() -> None:
    for frozen, *others in launched(frozen_later):
        assert not frozen
        assert all(others)


def not_averaged(ranks: Ranks, layout: str) -> list[str]:
    """Trains with a loss that calls the model of the script, and with a parameter that is frozen in the training."""
    said = []
    for way in ("by its own name", "frozen"):
        draft, batch = draft_of("mlp", ranks.count)
        draft.ranks, inner, loss = ranks, draft.model, draft.loss

        def compute(model: Any, part: Any, inner: Any = inner, loss: Any = loss) -> Any:
            return loss.compute(inner, part)

        if way != "frozen":
            draft.loss = replace(loss, compute=compute)
        with prepare(plan_of({"layout": layout}), draft, members()) as step:
            part = parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], step.plan)
            if way == "frozen":
                step(part)
                next(inner.parameters()).requires_grad_(False)
            try:
                step(part)
            except WorkloadError as error:
                said.append(str(error))
    return said


@pytest.mark.parametrize("layout", ["replicated", "optimizer"])
def test_gradients_that_are_not_averaged_end_the_training_on_all_ranks(layout: str) -> None:
    first, second = launched(not_averaged, layout)
    assert first == second
    assert "calls the model by a variable of its own" in first[0]
    assert "requires_grad of" in first[1]
    assert "was changed after prepare" in first[1]


def closed_late(ranks: Ranks) -> list[str]:
    """Closes a step on one rank, and on the other when the first has waited for some time."""
    workloads.step.TOGETHER_S = 0.5
    draft, batch = draft_of("mlp", ranks.count)
    draft.ranks = ranks
    step = prepare(plan_of({"layout": "full"}), draft, members())
    step(parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], step.plan))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        time.sleep(2.0 * ranks.number)
        step.close()
    assert not any(isinstance(each, DTensor) for each in draft.model.parameters())
    return [str(each.message) for each in said]


def test_a_rank_that_closes_its_step_says_for_whom_it_waits() -> None:
    (message,), nothing = launched(closed_late)
    assert message.startswith("rank 0 has waited 0 s for rank 1 to close its step")
    assert "Call close() on all ranks" in message
    assert nothing == []


def saved(ranks: Ranks, layout: str) -> list[Any]:
    """Returns what torch finds of weights and state while a step trains, and whether it is what closing leaves."""
    draft, batch = draft_of("llama", ranks.count)
    draft.optimizer = torch.optim.AdamW(draft.model.parameters())
    draft.ranks = ranks.in_rows(distributed.new_group) if layout == "hybrid" else ranks
    with prepare(plan_of({"layout": layout}), draft, members()) as step:
        step(parts_of(split(batch, [SIZE] * ranks.count)[ranks.number], step.plan))
        assert step.optimizer is not None
        model, optimizer = get_state_dict(step.model, step.optimizer, options=StateDictOptions(full_state_dict=True))
    expected = {**draft.model.state_dict(), **states(draft)}
    given: Any = optimizer["state"]
    found = {**model, **{f"{name}, {key}": each for name, state in given.items() for key, each in state.items()}}
    return [len(found), len(expected), all(torch.equal(each, expected[name]) for name, each in found.items())]


@pytest.mark.parametrize(("layout", "ranks"), [("replicated", 2), ("full", 2), ("tensor", 2), ("hybrid", 4)])
def test_torch_saves_weights_and_state_while_a_step_trains(layout: str, ranks: int) -> None:
    for count, expected, same in launched(saved, layout, ranks=ranks):
        assert count == expected
        assert same
