"""Layers are divided by the plan that a model declares, or the layout is refused with the reason."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.layout import RankLayout
from autofit.strategies.tensor_parallel import lack_of_layers
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.batch_algebra import split
from autofit.workloads.step import PER_MACHINE, StepBatch
from tests.conformance.test_strategies import Case, everything_but_values, same_bits, values_of
from tests.strategies.test_layout import facts, offered, reasons

WIDTH, WORDS = 16, 32
TENSOR = Plan(values={"layout": "tensor"})


class PlannedBlock(nn.Module):
    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm, self.inner, self.drop = nn.LayerNorm(WIDTH), nn.LayerNorm(4), nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.norm(x))
        hidden = self.inner(hidden.unflatten(-1, (-1, 4))).flatten(-2)
        out: torch.Tensor = x + self.drop(self.down(hidden.relu()))
        return out


class Planned(nn.Module):
    """A model of two blocks that declares how its layers are divided, as those of transformers do."""

    def __init__(self, *, tied: bool = True, words: int = WORDS, rate: float = 0.0, plan: Any = ()) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.blocks = nn.ModuleList(PlannedBlock(rate) for _ in range(2))
        if tied:
            self.head.weight = self.tokens.weight
        self.config = SimpleNamespace(num_attention_heads=8)
        self.tp_plan = {
            "tokens": "embedding_rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise",
            "blocks.*.inner": "replicated_with_grad_allreduce", "head": "colwise_gather_output", **dict(plan),
        }  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x.mean(1))
        return out


def planned(**changes: Any) -> Any:
    model = Planned(**changes)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0), torch.randint(WORDS, (4, 3))


def subclass() -> Planned:
    model = Planned(tied=False)
    block: Any = model.blocks[0]
    block.up = type("Other", (nn.Linear,), {})(WIDTH, 2 * WIDTH)
    return model


def shared() -> Planned:
    model = Planned(tied=False)
    block: Any = model.blocks[0]
    block.up.weight = block.extra = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
    return model


def functional() -> Planned:
    model = Planned()
    block: Any = model.blocks[1]
    block.attention_dropout = 0.1
    return model


def narrow() -> Planned:
    model = Planned()
    block: Any = model.blocks[1]
    block.down = nn.Linear(2 * WIDTH + 1, WIDTH)
    return model


def without_layers() -> Planned:
    model = Planned()
    model.tp_plan = {"other": "colwise"}
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(4, 4), r"the model declares no plan for it \(tp_plan\)"),
        (
            lambda: Planned(plan={"head": "packed_colwise"}),
            "the model's plan has packed_colwise, which autofit does not know",
        ),
        (lambda: Planned(plan={"head.weight": "colwise"}), "divides the parameter head.weight without its module"),
        (lambda: Planned(plan={"blocks.*.norm": "colwise"}), "divides blocks.0.norm as Linear, which is a LayerNorm"),
        (subclass, "divides blocks.0.up as Linear, which is a Other"),
        (shared, "another module has the weight of blocks.0.up, and does not divide it in the same way"),
        (narrow, "the 33 columns of blocks.1.down cannot be divided by 2 ranks"),
        (without_layers, "the model's plan names none of its layers"),
        (lambda: Planned(rate=0.1), "blocks.0.drop draws random numbers"),
        (functional, "blocks.1.attention_dropout draws random numbers"),
    ],
)
def test_a_model_whose_layers_cannot_be_divided_is_refused(make: Callable[[], nn.Module], reason: str) -> None:
    given = facts(make())
    assert "tensor" not in offered(given)["layout"]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(reasons(given)["layout=tensor"])


def test_heads_have_to_be_divided_evenly_and_ranks_to_be_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Planned()
    assert lack_of_layers(model, 8) is None
    assert lack_of_layers(model, 16) == "num_attention_heads=8 cannot be divided by 16 ranks"
    assert lack_of_layers(model.eval(), 2) is None
    given = facts(model)
    assert offered(given) == {"layout": ("replicated", "optimizer", "full", "tensor")}
    assert offered(facts(model, layout="tensor")) == {"layout": ("tensor",)}
    monkeypatch.setenv(PER_MACHINE, "1")
    assert "several machines" in reasons(given)["layout=tensor"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"gradient_as_bucket_view": True}, "layout=tensor divides them"),
        ({"reshard_after_forward": False}, "gathers none"),
        ({"gather_precision": "bf16"}, "gathers none"),
        ({"precision": "fp16"}, "the scaler of fp16"),
    ],
)
def test_what_belongs_to_other_layouts_and_a_scaler_are_conflicts(values: dict[str, Any], reason: str) -> None:
    assert reason in (RankLayout().conflict(TENSOR.replace(**values)) or "")


@pytest.mark.parametrize("name", ["linear_cross_entropy", "activation_offload", "memory_format"])
def test_techniques_that_use_whole_weights_are_conflicts(name: str) -> None:
    member = next(each for each in members() if each.name == name)
    values: dict[str, Any] = {
        "linear_cross_entropy": "chunked",
        "activation_offload": True,
        "memory_format": "channels_last",
    }
    assert "layout=tensor" in (member.conflict(TENSOR.replace(**{name: values[name]})) or "")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_a_rank_trains_its_part_of_divided_layers_and_everything_is_undone(implementation: str, number: int) -> None:
    case = Case(planned)
    before, values = everything_but_values(case), values_of(case)
    plan = TENSOR.replace(optimizer_implementation=implementation)
    with fake_ranks(2, number) as case.draft.ranks:
        applied = everything_but_values(case)
        for error in (None, KeyError):
            try:
                with prepare(plan, case.draft, members()):
                    assert everything_but_values(case) != applied
                    if error is not None:
                        raise error
            except KeyError:
                assert error is not None
            assert everything_but_values(case) == applied
            assert same_bits(values_of(case), values)
        case.draft.max_grad_norm = 0.5
        with prepare(plan, case.draft, members()) as step:
            ways = {n: p.placements[0] for n, p in step.model.named_parameters() if isinstance(p, DTensor)}
            step(case.batch)
        case.draft.max_grad_norm = None
    case.draft.ranks = None
    assert everything_but_values(case) == before
    assert {name.removeprefix("blocks.0."): way for name, way in ways.items() if "blocks.1" not in name} == {
        "tokens.weight": Shard(0), "up.weight": Shard(0), "up.bias": Shard(0), "down.weight": Shard(1),
        "down.bias": Replicate(),
    }  # fmt: skip
    for name, parameter in case.model.named_parameters():
        moved = parameter != values[f"model.{name}"] if f"model.{name}" in values else parameter != values[name]
        if isinstance(way := ways.get(name), Shard):
            mine, other = (moved.chunk(2, way.dim)[each] for each in (number, 1 - number))
            assert mine.any(), name
            assert not other.any(), name
        else:
            assert moved.any(), name


@pytest.mark.parametrize(
    ("changes", "outside", "left"), [({"tied": False, "words": 33}, "", 2), ({"words": 33}, "", 1), ({}, "tokens", 1)]
)
def test_an_embedding_or_a_head_that_cannot_be_divided_stays_whole(
    changes: dict[str, Any], outside: str, left: int
) -> None:
    case = Case(lambda: planned(**changes))
    model: Any = case.model
    model.tp_plan.pop(outside, None)
    whole = {"tokens.weight", "head.weight"}
    with fake_ranks(2) as case.draft.ranks, prepare(TENSOR, case.draft, members()) as step:
        kinds = {name: isinstance(each, DTensor) for name, each in step.model.named_parameters()}
        step(case.batch)
    assert len(whole & kinds.keys()) == left
    assert not any(kinds[name] for name in whole & kinds.keys())
    assert kinds["blocks.0.up.weight"]


class Growing(torch.optim.Optimizer):
    """Counts its updates in its groups, and fails in the third."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["updates"] = group.get("updates", 0) + 1
            if group["updates"] == 3:
                raise ValueError
            with torch.no_grad():
                torch._foreach_add_(group["params"], [each.grad for each in group["params"]], alpha=-group["lr"])


class GrowingToo(Growing):
    """Has an update of its own, around that of its base."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)


@pytest.mark.parametrize("kind", [Growing, GrowingToo])
def test_a_scheduler_sees_the_groups_of_before_and_what_an_update_writes_is_kept(kind: Any) -> None:
    case = Case(planned)
    Growing([nn.Parameter(torch.ones(1))], {})  # from now on torch hooks the update of the base
    case.draft.optimizer = kind(case.model.parameters(), {"lr": 0.1})
    (group,) = case.draft.optimizer.param_groups
    case.draft.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(case.draft.optimizer, 10)
    with fake_ranks(2) as case.draft.ranks, prepare(TENSOR, case.draft, members()) as step:
        for number in (1, 2):
            step(case.batch)
            assert step.optimizer is not None
            assert step.optimizer.param_groups == [group]
            assert group["updates"] == number
            assert len(group["params"]) == len([*step.model.parameters()])
        assert group["lr"] < 0.1
        with pytest.raises(ValueError):
            step(case.batch)
    assert case.draft.optimizer.param_groups == [group]
    assert all(type(each) is nn.Parameter for each in group["params"])


def test_a_step_runs_the_micro_batches_of_all_ranks() -> None:
    case = Case(planned)
    seen = []
    with fake_ranks(4) as case.draft.ranks, prepare(TENSOR, case.draft, members()) as step:
        handle = step.model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
        step(StepBatch.of([case.batch, split(case.batch, [2, 2])[0]]))
        handle.remove()
    assert seen == [4, 2] * 4


def test_a_draft_that_does_not_admit_it_is_refused() -> None:
    case = Case(lambda: planned(rate=0.5))
    with (
        fake_ranks(2) as case.draft.ranks,
        pytest.raises(SpaceError, match=r"layout=tensor cannot be applied: blocks\.0\.drop draws random numbers"),
        prepare(TENSOR, case.draft, members()),
    ):
        pass
