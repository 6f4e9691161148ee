"""Checkpoint order: the best blocks first, the same order every time, and text that a plan can hold."""

from itertools import combinations

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.strategies.base import Span
from autofit.strategies.checkpoint_order import cost_of, order_of, peak_bytes
from tests.strategies.repeated_blocks import STRATEGY, Gpt, draft_of, trace_of

MIB = 2**20


def spans_of(*blocks: tuple[int, float, float], head: int = 8) -> list[Span]:
    """Returns parts: block, saved MiB, work; each input takes 1 MiB."""
    parts = [
        Span(block, saved_bytes=round(saved * MIB), input_bytes=MIB, flops=round(work * 1e6))
        for block, saved, work in blocks
    ]
    return [*parts, Span(None, saved_bytes=head * MIB)]


def excess(spans: list[Span], order: tuple[int, ...]) -> float:
    """Returns how much longer a step takes with the fewest blocks of `order` that fit than with the best set.

    The limit on memory is half way between none and the least.
    """
    blocks = range(len(order))
    work = [sum(cost_of(span) for span in spans if span.block == block) for block in blocks]
    sets = [chosen for size in range(len(order) + 1) for chosen in combinations(blocks, size)]
    peaks = {chosen: peak_bytes(spans, chosen) for chosen in sets}
    limit = (max(peaks.values()) + min(peaks.values())) / 2
    best = min(sum(work[block] for block in chosen) for chosen in sets if peaks[chosen] <= limit)
    needed = next(size for size in range(len(order) + 1) if peak_bytes(spans, order[:size]) <= limit)
    return (3 * sum(work) + sum(work[block] for block in order[:needed])) / (3 * sum(work) + best) - 1


def test_equal_blocks_keep_the_order_of_the_modules() -> None:
    assert order_of(spans_of(*[(block, 10, 5) for block in range(12)]), 12) == tuple(range(12))
    nearly = spans_of(*[(block, 10 + 0.1 * (block % 2), 5) for block in range(12)])
    assert order_of(nearly, 12) == tuple(range(12))


def test_the_block_that_frees_most_for_its_work_is_first() -> None:
    assert order_of(spans_of((0, 5, 20), (1, 20, 10), (2, 15, 10), (3, 5, 20)), 4)[:2] == (1, 2)


def test_blocks_that_run_last_are_last_whatever_their_place_among_the_modules() -> None:
    u_net = spans_of((0, 40, 10), (1, 20, 10), (4, 10, 10), (2, 15, 25), (3, 60, 25), head=2)
    assert order_of(u_net, 5) == (0, 1, 4, 2, 3)


def test_a_block_that_never_ran_is_last() -> None:
    assert order_of(spans_of((0, 2, 50), (2, 40, 10)), 3)[-1] == 1


@pytest.mark.parametrize("seed", range(20))
def test_fewest_blocks_that_fit_are_near_the_best_set(seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    saved, work = (
        (1 + 40 * torch.rand(6, generator=chance)).tolist(),
        (5 + 20 * torch.rand(6, generator=chance)).tolist(),
    )
    spans = spans_of(*zip(range(6), saved, work, strict=True))
    assert excess(spans, order_of(spans, 6)) <= 0.06


def test_without_a_profile_the_order_is_that_of_the_modules() -> None:
    assert order_of([], 3) == (0, 1, 2)


@pytest.mark.parametrize("text", ["0,2,x", "-1,0,1", "0-999999999", "0, 1", "1,", 3])
def test_something_else_is_not_an_order(text: object) -> None:
    with pytest.raises(SpaceError, match=r"checkpoint_order=.*expected numbers of blocks such as"):
        STRATEGY.apply(Plan(values={"checkpoint_order": text}), draft_of(Gpt()))  # type: ignore[dict-item]  # on purpose


def test_a_plan_with_an_order_checkpoints_its_first_blocks() -> None:
    model = Gpt()
    before = trace_of(model)
    plan = Plan(values={"checkpointed_blocks": 2, "checkpoint_order": "2,0,1,3"})
    for _ in range(2):
        with STRATEGY.apply(plan, draft_of(model)):
            assert ["forward" in vars(block) for block in model.blocks] == [True, False, True, False]
        assert trace_of(model) == before


@pytest.mark.parametrize("order", ["0-4", "0,1", "0-1,1-3"])
def test_an_order_of_other_blocks_is_an_error(order: str) -> None:
    plan = Plan(values={"checkpointed_blocks": 2, "checkpoint_order": order})
    with pytest.raises(SpaceError, match=r"checkpoint_order=.*expected each of the blocks 0 to 3 once"):
        STRATEGY.apply(plan, draft_of(Gpt()))


def test_a_transformers_model_follows_the_order_too() -> None:
    class Layer(nn.Linear):
        gradient_checkpointing = False

    Layer.__name__ = "GradientCheckpointingLayer"

    class Owner(nn.Sequential):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: object = None) -> None:
            for layer in self:
                vars(layer)["gradient_checkpointing"] = True

        def gradient_checkpointing_disable(self) -> None:
            for layer in self:
                vars(layer)["gradient_checkpointing"] = False

    model = Owner(*[Layer(2, 2) for _ in range(3)])
    with STRATEGY.apply(Plan(values={"checkpointed_blocks": 1, "checkpoint_order": "2,0-1"}), draft_of(model)):
        assert [layer.gradient_checkpointing for layer in model] == [False, False, True]
