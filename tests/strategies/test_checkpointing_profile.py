"""What a profiled step adds to the offer of checkpointing: an order of the blocks, and a choice of operators."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.plan import Plan
from autofit.strategies.base import Facts, Span
from tests.strategies.repeated_blocks import STRATEGY, Gpt, facts_of
from tests.test_fit import with_plan

MIB = 2**20


class UNet(nn.Module):
    """A U-Net whose last level, which runs in the middle, is the last module."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([double(3, width), double(width, 2 * width)])
        self.up = nn.ModuleList([double(6 * width, 2 * width), double(3 * width, width)])
        self.middle = double(2 * width, 4 * width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for level, skip in zip(self.up, reversed(skips), strict=True):
            x = level(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skip], 1))
        output: Tensor = self.out(x)
        return output


def double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1), nn.GroupNorm(2, outputs), nn.SiLU(),
        nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GroupNorm(2, outputs), nn.SiLU(),
    )  # fmt: skip


def images() -> DataLoader[Any]:
    torch.manual_seed(0)
    found = torch.randn(64, 3, 32, 32)
    return DataLoader(TensorDataset(found, found), batch_size=8)


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
    assert (offer.constants, offer.refused) == ((), ())


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


def test_an_order_other_than_that_of_the_modules_is_a_constant_of_every_plan() -> None:
    reverse = list(reversed(spans()))
    (order,) = STRATEGY.offer(facts(reverse)).constants
    assert (order.name, order.values) == ("checkpoint_order", ("1-3,0",))


def test_every_plan_of_a_search_names_the_order_and_is_prepared_with_it() -> None:
    model = UNet()
    found = search(model)
    assert {plan.values["checkpoint_order"] for plan in (found.plan, found.baseline.plan)} == {"0-1,4,2-3"}
    assert found.baseline.plan.values["checkpointed_blocks"] == 0
    fit = with_plan(found, **{**found.plan.values, "checkpointed_blocks": 3})
    with fit.prepare(model, images(), torch.optim.AdamW(model.parameters())) as step:
        chosen = [*model.down, model.middle]
        assert all("forward" in vars(block) for block in chosen)
        assert not any("forward" in vars(block) for block in model.up)
        assert step(next(iter(step.loader))).isfinite()
    assert not any("forward" in vars(module) for module in model.modules())


def search(model: nn.Module) -> Any:
    return autofit.tune(
        model,
        images(),
        loss_fn=nn.functional.mse_loss,
        global_batch_size=8,
        strategies=["checkpointing"],
        memory_budget="1GiB",
        time_budget="60s",
        study=":memory:",
        progress=False,
        device="cpu",
    )
