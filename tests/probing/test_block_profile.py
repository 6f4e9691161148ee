"""Block profile: counted like by hand, repeatable, and without a trace."""

from typing import Any

import torch
from torch import Tensor, nn

from autofit.core.plan import Plan
from autofit.gates.gradients import Steps
from autofit.prepare import prepare
from autofit.probing.block_profile import profiled, profiled_on_copy
from autofit.strategies import members
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.workload import Workload
from tests.strategies.repeated_blocks import trace_of

SAMPLES, WIDTH, FLOAT = 2, 8, 4


class Block(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.up, self.down, self.dropout = nn.Linear(WIDTH, wide), nn.Linear(wide, WIDTH), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.dropout(self.up(x))))  # type: ignore[no-any-return]  # nn.Module


class Net(nn.Module):
    """Runs its blocks in another order than that of the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(16), Block(32)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](torch.exp(self.blocks[1](x)))  # type: ignore[no-any-return]  # nn.Module


def mean(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]  # nn.Module


def is_product(func: Any, *_: Any) -> bool:
    return func is torch.ops.aten.addmm.default


def profile(model: Net) -> Any:
    def build(plan: Plan) -> TrainStep:
        rule = LossRule("loss", mean, inferred=False, about="")
        return prepare(plan, Draft(model, rule, None, torch.device("cpu")), members())

    batch = Counted(torch.ones(SAMPLES, WIDTH), SAMPLES)
    return profiled(Steps(build), Plan(), tuple(model.blocks), is_product, batch)


def test_parts_are_counted_per_sample_in_the_order_in_which_they_ran() -> None:
    first, second, between, third, last = profile(Net())
    assert [part.block for part in (first, second, between, third, last)] == [None, 1, None, 0, None]
    assert (second.flops, third.flops) == (4 * WIDTH * 32, 4 * WIDTH * 16)
    assert second.marked_flops == second.flops
    assert second.marked_bytes == FLOAT * (32 + WIDTH)
    # The input and the result of tanh; dropout is off.
    assert (second.saved_bytes, second.input_bytes) == (FLOAT * (WIDTH + 32), FLOAT * WIDTH)
    # The result of exp is kept between the blocks, so that the block's input is kept already.
    assert between.saved_bytes == FLOAT * WIDTH
    assert (third.saved_bytes, third.input_bytes) == (FLOAT * 16, 0)
    assert last.saved_bytes == FLOAT * WIDTH
    assert second.operators == 3
    assert second.traffic_bytes > second.saved_bytes


def test_a_profile_is_repeatable_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = Net()
    before, random = trace_of(model), torch.get_rng_state()
    assert profile(model) == profile(model)
    assert trace_of(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_fake_copy_gives_the_same_profile_without_computing() -> None:
    model = Net()
    workload = Workload(model, [torch.ones(SAMPLES, WIDTH)], step_fn=mean)
    batch = Counted(torch.ones(SAMPLES, WIDTH), SAMPLES)
    before, random = trace_of(model), torch.get_rng_state()
    found = profiled_on_copy(
        workload, LossRule("step_fn", mean, inferred=False, about=""), Plan(), tuple(model.blocks), is_product, batch
    )
    assert found == profile(model)
    assert trace_of(model) == before
    assert torch.equal(torch.get_rng_state(), random)
