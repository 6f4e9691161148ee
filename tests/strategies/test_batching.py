"""The batch: which micro batches are offered, and which plans are turned away."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.strategies.base import Facts
from autofit.strategies.batching import Batching, ladder
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft
from autofit.workloads.update import rule_of_update
from tests.workloads import gans

MODEL = nn.Linear(2, 2)
FREE = Facts(
    model=MODEL,
    batch=torch.zeros(4, 2),
    optimizer=None,
    device_type="cpu",
    capabilities=frozenset(),
    numerics="mixed",
    training=True,
    micro_batch_size=4,
)


def offered(facts: Facts) -> dict[str, Knob]:
    return {knob.name: knob for knob in Batching().offer(facts).knobs}


def sizes(facts: Facts) -> tuple[object, ...]:
    return offered(facts)[MICRO_BATCH_SIZE].values


def draft(training: bool = True) -> Draft:
    optimizer = torch.optim.SGD(MODEL.parameters()) if training else None
    rule = LossRule("step_fn", lambda model, batch: model(batch).sum(), False, "")
    return Draft(MODEL, rule, optimizer, torch.device("cpu"))


def test_global_batch_gives_its_divisors_and_their_quotients() -> None:
    knobs = offered(replace(FREE, micro_batch_size=4, accumulation_steps=3, global_batch_size=12))
    assert knobs[MICRO_BATCH_SIZE].values == (1, 2, 3, 4, 6, 12)
    assert knobs[MICRO_BATCH_SIZE].default == 4
    assert knobs[ACCUMULATION_STEPS].values == (1, 2, 3, 4, 6, 12)
    assert knobs[ACCUMULATION_STEPS].default == 3


@pytest.mark.fault("F32")
def test_micro_batch_is_at_most_the_data_set_while_the_global_batch_is_kept() -> None:
    facts = replace(FREE, micro_batch_size=4, accumulation_steps=4, global_batch_size=16, dataset_size=10)
    knobs = offered(facts)
    assert knobs[MICRO_BATCH_SIZE].values == (1, 2, 4, 8)
    assert knobs[ACCUMULATION_STEPS].values == (2, 4, 8, 16)


def test_own_micro_batch_stays_in_the_space_above_the_data_set() -> None:
    facts = replace(FREE, micro_batch_size=16, global_batch_size=16, dataset_size=10)
    assert sizes(facts) == (1, 2, 4, 8, 16)


def test_free_batch_climbs_the_ladder_to_64_times_the_own() -> None:
    found = sizes(replace(FREE, micro_batch_size=3))
    assert found[:6] == (1, 2, 3, 4, 8, 16)
    assert found[-1] == 192
    assert all(isinstance(size, int) and (size < 8 or size % 8 == 0) for size in found)


@pytest.mark.fault("F32")
def test_free_batch_ends_at_the_data_set() -> None:
    assert sizes(replace(FREE, dataset_size=20, max_global_batch_size=100)) == (1, 2, 4, 8, 16)
    assert sizes(replace(FREE, dataset_size=20, training=False)) == (1, 2, 4, 8, 16)


@pytest.mark.fault("F34")
def test_the_limit_of_a_free_batch_is_named_with_what_raises_it() -> None:
    def limit(**facts: object) -> str:
        return Batching().offer(replace(FREE, **facts)).batch_limit  # type: ignore[arg-type]  # any field

    share = "1/50 of your data set"
    assert limit(dataset_size=10_000) == f"limited by {share}; max_global_batch_size raises it"
    baseline = f"limited by the baseline's batch, which is more than {share}; max_global_batch_size raises it"
    assert limit(dataset_size=100) == baseline
    assert limit(dataset_size=10_000, max_global_batch_size=100).startswith(
        "limited by the given max_global_batch_size"
    )
    for unlimited in (
        {"dataset_size": 10**6},
        {"dataset_size": None},
        {"dataset_size": 20, "max_global_batch_size": 100},
        {"dataset_size": 10_000, "resizable": False},
        {"dataset_size": 10_000, "training": False},
        {"dataset_size": 10_000, "global_batch_size": 4},
    ):
        assert limit(**unlimited) == ""


def test_free_batch_keeps_the_own_accumulation() -> None:
    knob = offered(replace(FREE, accumulation_steps=5))[ACCUMULATION_STEPS]
    assert (knob.values, knob.default) == ((5,), 5)


def test_batches_that_are_only_cut_are_cut_into_equal_pieces() -> None:
    """Cut at 8, batches of 12 gave 8, 4, 8, 4: optimizer steps of 20 and 16 samples instead of 24."""
    facts = replace(FREE, micro_batch_size=12, accumulation_steps=2, global_batch_size=24, cut_from=12)
    assert sizes(facts) == (1, 2, 3, 4, 6, 12)
    assert sizes(replace(FREE, micro_batch_size=12, cut_from=12)) == (1, 2, 4, 12)


def test_fixed_loader_offers_only_its_own_size_and_says_why() -> None:
    for facts in (
        replace(FREE, resizable=False),
        replace(FREE, resizable=False, accumulation_steps=2, global_batch_size=8),
    ):
        offer = Batching().offer(facts)
        assert sizes(facts) == (4,)
        assert [refusal.name for refusal in offer.refused] == [MICRO_BATCH_SIZE]
        assert "batches of 4" in offer.refused[0].reason
    assert Batching().offer(FREE).refused == ()


def test_inference_accumulates_nothing_and_keeps_no_global_batch() -> None:
    facts = replace(FREE, training=False, accumulation_steps=4, global_batch_size=16)
    knob = offered(facts)[ACCUMULATION_STEPS]
    assert (knob.values, knob.default) == ((1,), 1)
    assert sizes(facts) == sizes(FREE)


@pytest.mark.parametrize("total", [0, -8])
def test_global_batch_must_be_positive(total: int) -> None:
    with pytest.raises(SpaceError, match="expected at least 1"):
        Batching().offer(replace(FREE, global_batch_size=total))


def test_own_setting_must_make_up_the_global_batch() -> None:
    with pytest.raises(SpaceError, match="not the global batch 30"):
        Batching().offer(replace(FREE, accumulation_steps=7, global_batch_size=30))


@pytest.mark.parametrize("value", [0, -1, True, "8"])
@pytest.mark.parametrize("knob", [MICRO_BATCH_SIZE, ACCUMULATION_STEPS])
def test_plan_with_an_impossible_batch_is_turned_away(knob: str, value: int | str) -> None:
    with pytest.raises(SpaceError, match=knob), Batching().apply(Plan(values={knob: value}), draft()):
        pass


def test_plan_that_accumulates_in_inference_is_turned_away() -> None:
    plan = Plan(values={MICRO_BATCH_SIZE: 4, ACCUMULATION_STEPS: 2})
    with pytest.raises(SpaceError, match="inference"), Batching().apply(plan, draft(training=False)):
        pass
    with Batching().apply(plan, draft()), Batching().apply(plan.replace(accumulation_steps=1), draft(False)):
        pass


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (0, ()),
        (1, (1,)),
        (3, (1, 2)),
        (7, (1, 2, 4)),
        (8, (1, 2, 4, 8)),
        (30, (1, 2, 4, 8, 16, 24)),
        (100, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96)),
    ],
)
def test_the_ladder(most: int, sizes: tuple[int, ...]) -> None:
    assert ladder(most) == sizes


def test_large_sizes_of_the_ladder_are_round_and_a_fifth_apart_at_most() -> None:
    large = [size for size in ladder(20_000) if size > 128]
    assert large[-1] == 16_384
    assert all(size % 32 == 0 and (size < 256 or size % 64 == 0) for size in large)
    assert {1 << power for power in range(8, 15)} <= set(large)
    assert all(1.1 < larger / smaller <= 1.25 for smaller, larger in pairwise(large))


def test_a_step_of_the_user_is_not_cut() -> None:
    offer = Batching().offered(replace(FREE, micro_batch_size=12, global_batch_size=12, update_fn=True))
    assert [(knob.name, knob.values) for knob in offer.knobs] == [(MICRO_BATCH_SIZE, (12,)), (ACCUMULATION_STEPS, (1,))]
    assert [refusal.name for refusal in offer.refused] == ["accumulation"]
    free = Batching().offered(replace(FREE, dataset_size=4000, update_fn=True))
    assert len(free.knobs[0].values) > 1
    made = Draft(MODEL, rule_of_update(gans.update), torch.optim.SGD(MODEL.parameters()), torch.device("cpu"))
    with (
        pytest.raises(SpaceError, match="expected 1, since update_fn does the whole optimizer step"),
        Batching().apply(Plan(values={ACCUMULATION_STEPS: 2}), made),
    ):
        pass
