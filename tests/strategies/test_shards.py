"""Layouts are applied and undone without a trace, on ranks without peers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.shards import blocks_to_shard
from autofit.tracing.ranks import fake_ranks
from tests.conformance.test_strategies import WORKLOADS, Case, everything_but_values, same_bits, values_of

PLANS = [
    Plan(values={"layout": "replicated"}),
    Plan(values={"layout": "replicated", "gradient_as_bucket_view": True}),
    Plan(values={"layout": "optimizer"}),
    Plan(values={"layout": "full"}),
    Plan(values={"layout": "full", "reshard_after_forward": False}),
    Plan(values={"layout": "hybrid"}),
]
IN_BF16 = [
    Plan(values={"layout": "full", "gather_precision": "bf16"}),
    Plan(values={"layout": "hybrid", "gather_precision": "bf16", "precision": "bf16"}),
]
"""Not for the workload with batch normalisation."""
each_case = pytest.mark.parametrize(
    ("plan", "workload"),
    [
        pytest.param(plan, workload, id=f"{workload}-{plan}")
        for workload in WORKLOADS
        for plan in [*PLANS, *(IN_BF16 if workload != "convolutions" else [])]
    ],
)
each_workload = pytest.mark.parametrize("workload", WORKLOADS)
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")


@each_case
def test_what_is_applied_and_undone_leaves_the_model_bit_identical(plan: Plan, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    before, values = everything_but_values(case), values_of(case)
    with fake_ranks(4) as case.draft.ranks:
        applied = everything_but_values(case)
        for error in (None, KeyError, KeyboardInterrupt):
            try:
                with prepare(plan, case.draft, members()):
                    assert everything_but_values(case) != applied
                    if error is not None:
                        raise error
            except (KeyError, KeyboardInterrupt):
                assert error is not None
            assert everything_but_values(case) == applied
            assert same_bits(values_of(case), values)
    case.draft.ranks = None
    assert everything_but_values(case) == before


@each_case
def test_a_step_leaves_trained_values_alone(plan: Plan, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    values = values_of(case)
    with fake_ranks(4) as case.draft.ranks:
        before = everything_but_values(case)
        with prepare(plan, case.draft, members()) as step:
            step(case.batch)  # what the other ranks would bring has no values, so that the loss may be anything
        assert everything_but_values(case) == before
    assert not same_bits(values_of(case), values)
    assert all(type(parameter) is nn.Parameter for parameter in case.model.parameters())


@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
@pytest.mark.parametrize("layout", ["replicated", "optimizer", "full", "hybrid"])
def test_each_implementation_of_the_optimizer_updates_each_layout(layout: str, implementation: str) -> None:
    case = Case(WORKLOADS["mlp"])
    plan = Plan(values={"layout": layout, "optimizer_implementation": implementation})
    values = values_of(case)
    with fake_ranks(4) as case.draft.ranks:
        before = everything_but_values(case)
        case.draft.max_grad_norm = 0.5
        with prepare(plan, case.draft, members()) as step:
            step(case.batch)
            assert step.optimizer is not None
            assert {group["fused"] for group in step.optimizer.param_groups} == {implementation == "fused"}
        case.draft.max_grad_norm = None
        assert everything_but_values(case) == before
    assert not same_bits(values_of(case), values)


@each_workload
def test_all_layouts_follow_each_other_on_one_model(workload: str) -> None:
    case = Case(WORKLOADS[workload])
    expected = prepare(Plan(), Case(WORKLOADS[workload]).draft, [])(case.batch)
    values = values_of(case)
    for plan in [*PLANS, *(IN_BF16 if workload != "convolutions" else []), *PLANS[3:4]]:
        with fake_ranks(4) as case.draft.ranks, prepare(plan, case.draft, members()) as step:
            step(case.batch)
        with torch.no_grad():
            for name, tensor in values_of(case).items():
                tensor.copy_(values[name])
            for name, tensor in {**dict(case.model.named_parameters()), **dict(case.model.named_buffers())}.items():
                tensor.copy_(values[name])
    case.draft.ranks = None
    torch.testing.assert_close(prepare(Plan(), case.draft, [])(case.batch), expected)


@pytest.mark.parametrize(
    ("layout", "count", "number"), [("full", 2, 0), ("full", 2, 1), ("hybrid", 4, 2), ("hybrid", 4, 3)]
)
def test_a_rank_alone_trains_its_own_part(layout: str, count: int, number: int) -> None:
    case = Case(WORKLOADS["mlp"])
    before = {name: parameter.detach().clone() for name, parameter in case.model.named_parameters()}
    plan, place = Plan(values={"layout": layout}), number % 2
    with fake_ranks(count, number) as case.draft.ranks, prepare(plan, case.draft, members()) as step:
        parts = {name: parameter for name, parameter in step.model.named_parameters()}
        assert all(isinstance(parameter, DTensor) for parameter in parts.values())
        step(case.batch)
    for name, parameter in case.model.named_parameters():
        mine, others = (parameter.chunk(2)[each] != before[name].chunk(2)[each] for each in (place, 1 - place))
        assert mine.any(), name
        assert not others.any(), name


def test_a_group_that_is_added_to_the_optimizer_of_a_sharded_step_gets_whole_parameters_at_the_end() -> None:
    case = Case(WORKLOADS["mlp"])
    frozen = next(case.model.parameters()).requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in case.model.parameters() if each is not frozen], lr=0.1, momentum=0.9)
    case.draft.optimizer = optimizer
    with fake_ranks(2) as case.draft.ranks, prepare(PLANS[3], case.draft, members()) as step:
        optimizer.add_param_group({"params": [next(step.model.parameters()).requires_grad_()]})
        step(case.batch)
    assert optimizer.param_groups[1]["params"][0] is frozen
    assert all(type(each) is nn.Parameter for group in optimizer.param_groups for each in group["params"])
    optimizer.state_dict()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(11, 11), nn.Linear(11, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.two(self.one(x).relu())
        return out


class Tied(nn.Module):
    def __init__(self, tie: Callable[["Tied"], Any]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(11, 11)
        tie(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def to_head(model: Tied) -> None:
    first: Any = model.blocks[0]
    first.one.weight = model.head.weight


def inside(model: Tied) -> None:
    first: Any = model.blocks[0]
    first.one.weight = first.two.weight


@pytest.mark.parametrize(("tie", "expected"), [(lambda model: None, 3), (to_head, 2), (inside, 3)])
def test_a_block_whose_weights_are_tied_to_others_belongs_to_the_root(
    tie: Callable[[Tied], Any], expected: int
) -> None:
    model = Tied(tie)
    assert len(blocks_to_shard(model)) == expected
    case = Case(lambda: (model, torch.optim.AdamW(model.parameters()), torch.randn(4, 11)))
    same = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    with fake_ranks(4) as case.draft.ranks, prepare(PLANS[3], case.draft, members()) as step:
        step(case.batch)
    assert {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)} == same


def test_on_guarded_ranks_whole_weights_take_no_memory_and_come_back_without_content() -> None:
    case = Case(WORKLOADS["mlp"])
    whole = list(case.model.parameters())
    shared, sizes = whole[0].detach().numpy(), [each.untyped_storage().nbytes() for each in whole]
    before = shared.copy()
    with fake_ranks(2) as ranks:
        case.draft.ranks = replace(ranks, guarded=True)
        with prepare(PLANS[3], case.draft, members()) as step:
            step(case.batch)
            held = [each.untyped_storage().nbytes() for each in whole]
            assert held[0] == sizes[0], "NumPy shares this memory, and it cannot be released"
            assert not any(held[1:])
    assert [each.untyped_storage().nbytes() for each in whole] == sizes
    assert all(now is then for now, then in zip(case.model.parameters(), whole, strict=True))
    assert (shared == before).all()


class Asking(nn.Module):
    """Says in which formats it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dtype)
        for block in self.blocks:
            x = block(x)
            self.seen.append(x.dtype)
        return x


@pytest.mark.parametrize(
    ("values", "inside", "outside"),
    [
        ({}, [torch.float32] * 3, torch.float32),
        ({"precision": "bf16"}, [torch.float32, torch.bfloat16, torch.bfloat16], torch.bfloat16),
        ({"gather_precision": "bf16"}, [torch.bfloat16] * 3, torch.float32),
        (
            {"gather_precision": "bf16", "precision": "bf16"},
            [torch.float32, torch.bfloat16, torch.bfloat16],
            torch.bfloat16,
        ),
    ],
    ids=str,
)
def test_a_step_gets_what_it_would_get_if_weights_were_gathered_in_float32(
    values: dict[str, Any], inside: list[torch.dtype], outside: torch.dtype
) -> None:
    model, outputs = Asking(), list[torch.dtype]()
    case = Case(lambda: (model, torch.optim.AdamW(model.parameters()), torch.randn(4, 11)))
    model.seen.clear()
    with fake_ranks(4) as case.draft.ranks, prepare(PLANS[3].replace(**values), case.draft, members()) as step:
        hook = step.model.register_forward_hook(lambda module, inputs, output: outputs.append(output.dtype))
        step(case.batch)
        hook.remove()
        assert {each.dtype for each in step.model.parameters()} == {torch.float32}
        assert {each.grad.dtype for each in step.model.parameters() if each.grad is not None} <= {torch.float32}
    assert model.seen == inside
    assert outputs == [outside]


def test_meshes_of_one_process_differ_so_that_none_is_taken_for_another() -> None:
    with fake_ranks(2) as first:
        pass
    with fake_ranks(2) as second:
        assert first.mesh != second.mesh


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_without_a_fused_implementation_for_shards_is_refused(kind: Any) -> None:
    case = Case(WORKLOADS["mlp"])
    case.draft.optimizer = kind(case.model.parameters(), lr=0.1)
    plan = Plan(values={"layout": "full", "optimizer_implementation": "fused"})
    with (
        fake_ranks(4) as case.draft.ranks,
        pytest.raises(SpaceError, match=f"torch has no fused {kind.__name__} for sharded parameters"),
        prepare(plan, case.draft, members()),
    ):
        pass
    assert not any(isinstance(each, DTensor) for each in case.model.parameters())
