"""The memory of one rank by its trace, and by the same steps on real tensors without the other ranks."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch

from autofit.tracing.recorder import Recorder
from scripts.bench.ranks.launching import RANKS

pytest.importorskip("transformers")
from scripts.bench.memory.ranks import (
    APART,
    GATHERED,
    IN_ROWS,
    MODELS,
    NORMALISED,
    OTHERS,
    PROMISED,
    REQUIRED_RATIO,
    TENSOR,
    WITH_PLAN,
    estimated_bytes,
    plan_of,
    ranks_of,
    rehearsed_bytes,
    traced,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
ALL = (PROMISED, IN_ROWS, APART, GATHERED)
SMALL = ("mlp", "convolutions")
"""Models whose steps take no second."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cases(plans: Any) -> list[Any]:
    """Returns each model with each plan."""
    return [
        pytest.param(model, name, id=f"{model}-{name}", marks=[] if model in SMALL else [pytest.mark.slow])
        for model in MODELS
        for name in plans
        if plans is not GATHERED or model not in NORMALISED
    ]


@pytest.mark.parametrize(("model", "name"), [each for plans in ALL for each in cases(plans)])
def test_a_trace_is_within_one_percent_of_a_rehearsal(model: str, name: str) -> None:
    plan = plan_of(next(plans[name] for plans in ALL if name in plans))
    ranks = ranks_of(plan)
    rehearsed = max(rehearsed_bytes(model, plan, ranks, number) for number in range(ranks))
    assert estimated_bytes(model, plan, ranks) == pytest.approx(rehearsed, rel=REQUIRED_RATIO)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(model, name, marks=[pytest.mark.slow] * (model != "qwen3" or name != "tensor"))
        for model in WITH_PLAN
        for name in TENSOR
    ],
)
def test_a_trace_of_divided_layers_is_within_one_percent_of_a_rehearsal(model: str, name: str) -> None:
    plan = plan_of(TENSOR[name])
    assert estimated_bytes(model, plan) == pytest.approx(rehearsed_bytes(model, plan), rel=REQUIRED_RATIO)


def test_the_work_of_two_passes_stands_for_that_of_all_ranks() -> None:
    plan, products = plan_of(TENSOR["tensor"]), list[int]()
    for passes in (1, RANKS):
        with ExitStack() as patched:
            for module in ("workloads.step", "tracing.tracing"):
                patched.enter_context(patch(f"autofit.{module}.TRACED_PASSES", passes))
            work = traced("llama", plan, RANKS).work
        assert work is not None
        products.append(work.micro.flops["fp32"])
    assert products[0] == products[1] > 0


@pytest.mark.parametrize(("model", "name"), cases(OTHERS))
def test_other_plans_are_close_too(model: str, name: str) -> None:
    """With all blocks checkpointed, traces lack the random states that checkpointing keeps, of 5 KB each."""
    plan = plan_of(OTHERS[name])
    assert estimated_bytes(model, plan) == pytest.approx(rehearsed_bytes(model, plan), rel=0.015)


@pytest.mark.parametrize("name", ["optimizer", "full"])
def test_eight_ranks_need_less_than_two(name: str) -> None:
    plan = plan_of(PROMISED[name])
    two, eight = estimated_bytes("mlp", plan, 2), estimated_bytes("mlp", plan, 8)
    assert eight < two
    assert eight == pytest.approx(rehearsed_bytes("mlp", plan, 8), rel=REQUIRED_RATIO)


def test_the_comparison_sees_gathered_weights_that_are_not_released(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(PROMISED["full"])
    monkeypatch.setattr(Recorder, "resized", lambda recorder, storage: None)
    assert estimated_bytes("mlp", plan) > (1 + REQUIRED_RATIO) * rehearsed_bytes("mlp", plan)
