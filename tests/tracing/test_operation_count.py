"""What a trace counts of the arithmetic is what torch's own counter sees in a real step."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autofit.core.plan import Plan
from autofit.memory.trace import Trace
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing.operation_count import Tally, tensors_in
from autofit.tracing.tracing import trace
from autofit.workloads.step import Draft, StepBatch
from tests.tracing.tiny import Cnn, Gpt, images, words, workload

CPU = torch.device("cpu")
Batch = tuple[torch.Tensor, torch.Tensor]


def traced(model: nn.Module, batch: Batch, **values: bool | int | str) -> Trace:
    made, rule = workload(model, batch)
    return trace(made, rule, Plan(values={"micro_batch_size": len(batch[0]), **values}), batch, CPU)


def counted(model: nn.Module, batch: Batch) -> int:
    """Returns the operations of a real step, as torch counts them."""
    made, rule = workload(model, batch)
    draft = Draft(model=model, loss=rule, optimizer=made.make_optimizer(), device=CPU)
    plan = Plan(values={"micro_batch_size": len(batch[0])})
    with prepare(plan, draft, members()) as step, FlopCounterMode(display=False) as counter:
        step(StepBatch.of([batch]))
    flops: int = counter.get_total_flops()
    return flops


def test_tensors_are_found_in_lists() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    assert [len(each) for each in tensors_in((one, [two, None], 3, (three,)))] == [1, 2, 3]


def test_convolutions_and_products_are_counted_as_torch_counts_them() -> None:
    batch = images(4)
    work = traced(Cnn(), batch).work
    assert work is not None
    assert sum(work.micro.flops.values()) == counted(Cnn(), batch)
    assert work.micro.flops.keys() == {"fp32"}
    assert not work.update.flops


def test_attention_on_the_host_is_counted_though_torch_leaves_it_out() -> None:
    batch = words(4)
    model = Gpt()
    work = traced(model, batch).work
    assert work is not None
    size, time, width, layers = 4, batch[0].shape[1], 64, 2
    # Forward: scores and mixing, 2 products; backward: 5, the scores once more among them.
    attention = layers * (2 + 5) * 2 * size * time * time * width
    assert sum(work.micro.flops.values()) == counted(model, batch) + attention


def test_twice_the_batch_is_twice_the_work_and_the_update_stays() -> None:
    small, large = (traced(Gpt(), words(size)).work for size in (2, 4))
    assert small is not None
    assert large is not None
    assert large.micro.flops["fp32"] == 2 * small.micro.flops["fp32"]
    assert small.micro.traffic_bytes < large.micro.traffic_bytes < 2 * small.micro.traffic_bytes
    assert large.update == small.update


def test_a_micro_batch_of_several_counts_as_one() -> None:
    one, many = traced(Gpt(), words(2)).work, traced(Gpt(), words(2), accumulation_steps=3).work
    assert one is not None
    assert many is not None
    assert many.micro.flops == one.micro.flops


def test_a_product_under_autocast_is_counted_in_its_precision() -> None:
    work = traced(Gpt(), words(2), precision="bf16").work
    assert work is not None
    assert work.micro.flops["bf16"] > 0.9 * sum(work.micro.flops.values())


def test_a_view_a_question_and_unwritten_memory_are_no_work() -> None:
    aten, tally, x = torch.ops.aten, Tally(), torch.ones(4, 4)
    for func, args in (
        (aten.t.default, (x,)), (aten.view.default, (x, [16])), (aten.empty.memory_format, ([4],)),
        (aten._local_scalar_dense.default, (x[0, 0],)),
    ):  # fmt: skip
        tally.add(func, args, {}, func(*args))
    assert tally.work().operators == tally.work().traffic_bytes == 0
    tally.add(aten.add.Tensor, (x, x), {}, x + x)
    assert tally.work().operators == 1
    assert tally.work().traffic_bytes == 3 * 64


def test_what_is_made_in_place_is_moved_once_for_each_operand() -> None:
    tally, x = Tally(), torch.ones(8)
    torch.ops.aten._foreach_add_.List([x], [x.clone()])
    tally.add(torch.ops.aten._foreach_add_.List, ([x], [x.clone()]), {}, None)
    assert tally.work().traffic_bytes == 2 * 32


def test_a_form_of_call_without_a_formula_is_said_and_no_error() -> None:
    tally, x = Tally(), torch.ones(4, 4)
    tally.add(torch.ops.aten.mm.default, (x, torch.ones(5, 4)), {}, x)
    assert not tally.complete


@pytest.mark.parametrize("parts", [1, 2])
def test_parts_are_equal(parts: int) -> None:
    tally, x = Tally(), torch.ones(4, 4)
    for _ in range(parts):
        tally.add(torch.ops.aten.mm.default, (x, x), {}, x @ x)
    assert tally.work(parts).flops == {"fp32": 2 * 4**3}
    assert tally.work(parts).operators == 1
