"""What a profiled step adds to the offer of checkpointing: a choice of operators."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import nn

from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Span
from tests.strategies.repeated_blocks import STRATEGY, Gpt, facts_of

MIB = 2**20


def facts(spans: Sequence[Span], **more: Any) -> Facts:
    known = facts_of(Gpt())

    def profile(plan: Plan, blocks: Sequence[nn.Module], marked: Callable[..., bool]) -> Sequence[Span]:
        assert plan == Plan(values={"checkpointed_blocks": 0})
        return spans if len(blocks) == 4 else ()

    return Facts(**{name: getattr(known, name) for name in Facts.__slots__} | {"profile": profile} | more)


def spans(count: int = 4, **changes: int) -> list[Span]:
    whole = {
        "saved_bytes": 16 * MIB, "input_bytes": MIB, "flops": 10**9, "traffic_bytes": 10**6, "operators": 20,
        "marked_bytes": 9 * MIB, "marked_flops": 10**9,
    }  # fmt: skip
    return [Span(block, **(whole | changes)) for block in range(count)]


def test_large_blocks_may_keep_products_and_recompute_the_rest() -> None:
    offer = STRATEGY.offer(facts(spans()))
    blocks, operators = offer.knobs
    assert (operators.name, operators.values, operators.default) == ("recomputed_operators", ("all", "cheap"), "all")
    assert blocks.name == "checkpointed_blocks"
    assert 1 < operators.expected[1] < 4 / 3
    assert 1 < operators.growth[1] < 4
    assert all(operators.expected[1] * expected < 1 for expected in blocks.expected[1:])  # none is still the fastest
    assert offer.refused == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"marked_bytes": 13 * MIB}, "make 87% of what the blocks keep; at most 80%"),
        ({"traffic_bytes": 10**8}, "are 67% of a block's work; at most 50%"),
        ({"flops": 10**7, "marked_flops": 10**7, "traffic_bytes": 10}, "2.0e+06 operations per operator, at least 1e"),
        ({"saved_bytes": 0}, "no step of this model could be profiled"),
    ],
)
def test_selection_that_cannot_pay_is_refused_with_a_number(changes: dict[str, int], reason: str) -> None:
    offer = STRATEGY.offer(facts(spans(**changes)))
    assert [knob.name for knob in offer.knobs] == ["checkpointed_blocks"]
    (refusal,) = offer.refused
    assert refusal.name == "recomputed_operators=cheap"
    assert reason in refusal.reason


def test_a_larger_micro_batch_makes_blocks_large_enough() -> None:
    small = spans(flops=10**7, marked_flops=10**7, traffic_bytes=10)
    assert len(STRATEGY.offer(facts(small, micro_batch_size=4)).knobs) == 1
    assert len(STRATEGY.offer(facts(small, micro_batch_size=32)).knobs) == 2
