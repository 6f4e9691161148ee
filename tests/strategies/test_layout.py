"""The layouts of several ranks: which are offered, what they refuse, and that the heaviest rank is found."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import layout as layouts
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.layout import RankLayout, zero_redundancy_optimizer
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.step import StepBatch
from tests.conformance.test_strategies import EVERY_CAPABILITY, Case, convolutions, mlp, transformer

LAYOUT = RankLayout()
LAYOUTS = ("replicated", "optimizer", "full")


def facts(model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, **changes: Any) -> Facts:
    found = replace(Case(mlp).facts(), **{"ranks": 2, "global_batch_size": None, **changes})
    if model is not None:
        found = replace(found, model=model, optimizer=optimizer or torch.optim.AdamW(model.parameters()))
    return found


def offered(given: Facts) -> dict[str, tuple[Any, ...]]:
    return {knob.name: knob.values for knob in LAYOUT.offer(given).knobs}


def reasons(given: Facts) -> dict[str, str]:
    return {refusal.name: refusal.reason for refusal in LAYOUT.offer(given).refused}


def test_one_rank_has_no_layout() -> None:
    assert offered(replace(facts(), ranks=1)) == {}


def test_layouts_are_compared_and_a_fixed_one_has_its_own_knobs() -> None:
    assert offered(facts()) == {"layout": LAYOUTS}
    beside = {"reshard_after_forward": (True, False), "gather_precision": ("fp32", "bf16")}
    assert offered(facts(layout="full", capabilities=EVERY_CAPABILITY)) == {"layout": ("full",), **beside}
    assert offered(facts(pinned={"layout": "full"}, capabilities=EVERY_CAPABILITY)) == {"layout": LAYOUTS, **beside}
    assert offered(facts(pinned={"layout": "replicated"})) == {"layout": LAYOUTS}
    ways: list[dict[str, Any]] = [{"accumulation_steps": 2}, {"global_batch_size": 16}]
    for several in ways:
        apart = offered(facts(layout="full", capabilities=EVERY_CAPABILITY, **several))
        assert apart == {"layout": ("full",), **beside, "sync_each_batch": (True, False)}
        assert offered(facts(layout="replicated", **several)).keys() == {"layout", "gradient_as_bucket_view"}
    ways = [{"global_batch_size": 1}, {"global_batch_size": 16, "resizable": False}]
    for one in ways:
        assert "sync_each_batch" not in offered(facts(layout="full", **one))
    for layout in ("replicated", "optimizer"):
        assert offered(facts(layout=layout)) == {"layout": (layout,), "gradient_as_bucket_view": (False, True)}


@pytest.mark.parametrize(
    ("make", "changes", "reason"),
    [
        (lambda: nn.Linear(2, 2), {"numerics": "exact"}, "keeps the arithmetic"),
        (lambda: nn.Linear(2, 2), {"capabilities": frozenset()}, "does not compute in bf16"),
        (lambda: nn.Linear(2, 2).bfloat16(), {}, "parameter weight is torch.bfloat16"),
        (lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), {}, "1 keeps statistics in float32"),
    ],
)
def test_weights_are_not_gathered_in_bf16_where_a_model_does_not_allow_it(
    make: Callable[[], nn.Module], changes: dict[str, Any], reason: str
) -> None:
    given = replace(facts(make(), layout="full", capabilities=EVERY_CAPABILITY), **changes)
    assert offered(given) == {"layout": ("full",), "reshard_after_forward": (True, False)}
    assert reason in reasons(given)["gather_precision=bf16"]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.tensor(1.0)), nn.Linear(2, 2)


def overlapping() -> nn.Module:
    model, whole = nn.Linear(4, 4), torch.randn(2, 4, 4)
    model.weight = nn.Parameter(whole[0])
    return model


def transposed() -> nn.Module:
    model = nn.Linear(4, 6)
    model.weight = nn.Parameter(torch.randn(4, 6).t())
    return model


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""


@pytest.mark.parametrize(
    ("make", "optimizer", "layout", "reason"),
    [
        (Scaled, None, "full", "the parameter scale is a single number"),
        (overlapping, None, "full", "the parameter weight shares its memory"),
        (transposed, None, "full", "the parameter weight is not contiguous"),
        (mixed, None, "optimizer", "needs parameters of one dtype"),
        (lambda: nn.Linear(2, 2), Own, "optimizer", "Own is not an optimizer of torch.optim"),
    ],
)
def test_a_layout_that_a_model_does_not_admit_is_left_out_with_the_reason(
    make: Callable[[], nn.Module], optimizer: Callable[..., Any] | None, layout: str, reason: str
) -> None:
    model = make()
    given = facts(model, None if optimizer is None else optimizer(model.parameters()))
    assert layout not in offered(given)["layout"]
    assert reason in reasons(given)[f"layout={layout}"]
    fixed = replace(given, layout=layout)
    assert offered(fixed) == {}
    assert reason in reasons(fixed)[f"layout={layout}"]


def test_an_optimizer_of_other_parameters_cannot_follow_shards() -> None:
    model, other = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    given = facts(model, torch.optim.SGD([*model.parameters(), other], lr=0.1))
    assert reasons(given)["layout=full"] == "the optimizer also updates parameters that are not the model's"


def test_a_model_that_is_divided_already_is_refused() -> None:
    with fake_ranks(2) as ranks:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=ranks.group)
        assert (
            "the model is already divided among ranks by DistributedDataParallel" in reasons(facts(wrapped))["layout"]
        )
        part: Any = fully_shard(nn.Linear(2, 2), mesh=ranks.mesh)
        inside = nn.Sequential(part, nn.Linear(2, 2))
        assert "the module '0' is already divided among ranks by FSDPModule" in reasons(facts(inside))["layout"]
        case = Case(mlp)
        sharded = nn.Linear(2, 2)
        sharded.weight = part.weight
        assert "it holds sharded or quantized parameters" in reasons(facts(sharded))["layout"]
        case.draft.model, case.draft.ranks = wrapped, ranks
        with pytest.raises(SpaceError, match="already divided"):
            prepare(Plan(values={"layout": "replicated"}), case.draft, members())


def test_other_models_are_refused() -> None:
    assert "inference" in reasons(replace(facts(), optimizer=None))["layout"]
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert "trainable" in reasons(facts(frozen))["layout"]
    compiled: Any = nn.Linear(2, 2)
    compiled._compiled_call_impl = compiled.forward
    assert "compiled" in reasons(facts(compiled))["layout"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"layout": "full", "gradient_as_bucket_view": True}, "gradients that every rank has"),
        ({"layout": "replicated", "reshard_after_forward": False}, "gathers none"),
        ({"layout": "replicated", "gather_precision": "bf16"}, "gathers none"),
        ({"layout": "full", "gather_precision": "bf16", "precision": "fp16"}, "precision fp16 in another format"),
        ({"layout": "full", "gather_precision": "bf16", "precision": "tf32"}, "precision tf32 in another format"),
        ({"layout": "full", "gather_precision": "bf16"}, "keeps statistics in float32"),
        ({"layout": "full", "gather_precision": "fp8"}, "expected fp32 or bf16"),
        ({"layout": "replicated", "sync_each_batch": False, "accumulation_steps": 2}, "gathers none"),
        (
            {"layout": "full", "sync_each_batch": False, "accumulation_steps": 1},
            "several micro batches, and the plan has one",
        ),
        (
            {
                "layout": "full",
                "sync_each_batch": False,
                "accumulation_steps": 2,
                "gather_precision": "bf16",
                "find_unused_parameters": True,
            },
            "where a pass leaves a block out",
        ),
        ({"layout": "full", "sync_each_batch": 0, "accumulation_steps": 2}, "expected False or True"),
        ({"layout": "replicated", "find_unused_parameters": 1}, "expected False or True"),
        ({"layout": "full", "memory_format": "channels_last"}, "contiguous parameters"),
        ({"layout": "full", "activation_offload": True}, "gathered for one block"),
        ({"layout": "full", "linear_cross_entropy": "chunked"}, "weights of the head"),
        ({"layout": "replicated", "optimizer_in_backward": True}, "after they are complete"),
        ({"layout": "optimizer", "packing": True}, "its own samples"),
        ({"layout": "full", "length_grouping": True}, "wait for each other"),
        ({"layout": "full", "compile": "reduce-overhead"}, "not been tried"),
        ({"reshard_after_forward": False}, "names no layout"),
    ],
)
def test_what_does_not_go_together_is_refused_before_it_is_applied(values: dict[str, Any], reason: str) -> None:
    case = Case(convolutions)
    with fake_ranks(2) as case.draft.ranks, pytest.raises(SpaceError, match=reason):
        prepare(Plan(values=values), case.draft, members())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_needs_several_ranks(layout: str) -> None:
    with pytest.raises(SpaceError, match="there is one rank"):
        prepare(Plan(values={"layout": layout}), Case(mlp).draft, members())


def test_techniques_that_are_not_for_ranks_say_so() -> None:
    given = facts()
    refused = {member.name for member in members() if member.not_on_ranks}
    assert refused == {"packing", "length_grouping", "optimizer_in_backward"}
    for member in members():
        if member.not_on_ranks:
            assert [each.reason for each in member.offered(given).refused] == [member.not_on_ranks]


@pytest.mark.parametrize("make", [mlp, convolutions, transformer])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_heaviest_rank_has_the_most_optimizer_state(make: Callable[[], Any], count: int) -> None:
    _, optimizer, _ = make()
    loads = []
    for number in range(count):
        with fake_ranks(count, number) as ranks:
            zero = zero_redundancy_optimizer()(
                [dict(group) for group in optimizer.param_groups],
                optimizer_class=torch.optim.SGD,
                process_group=ranks.group,
                lr=0.1,
            )
            loads.append(sum(p.numel() for group in zero.optim.param_groups for p in group["params"]))
    plan = Plan(values={"layout": "optimizer"})
    assert sum(loads) == sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert LAYOUT.heaviest_rank(plan, optimizer, count) == loads.index(max(loads))
    assert LAYOUT.heaviest_rank(plan.replace(layout="full"), optimizer, count) == 0


@pytest.mark.parametrize("layout", ["replicated", "optimizer"])
@pytest.mark.parametrize("weights", [(0.25,) * 4, (0.5, 0.5, 0.0, 0.0)])
def test_gradients_are_exchanged_once_after_the_last_micro_batch_that_counts(
    layout: str, weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged, averaged = list[int](), layouts._averaged_alone

    def counted(count: int, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        exchanged.append(bucket.index())
        return averaged(count, bucket)

    monkeypatch.setattr(layouts, "_averaged_alone", counted)
    case = Case(mlp)
    plan = Plan(values={"micro_batch_size": 2, "accumulation_steps": 4, "layout": layout})
    with fake_ranks(2) as case.draft.ranks, prepare(plan, case.draft, members()) as step:
        for _ in range(2):
            exchanged.clear()
            step(StepBatch([case.step_batch(plan).parts[0]] * 4, weights))
            assert exchanged == sorted(set(exchanged)), "each bucket once"
            assert exchanged


@pytest.mark.parametrize(
    ("layout", "setting", "waits"),
    [("full", "set_requires_gradient_sync", True), ("hybrid", "set_requires_all_reduce", True), ("full", "", False)],
)
def test_gradients_wait_for_the_last_micro_batch_and_a_failed_one_leaves_nothing_switched_off(
    layout: str, setting: str, waits: bool
) -> None:
    case, switched = Case(mlp), list[bool]()
    plan = Plan(values={"micro_batch_size": 2, "accumulation_steps": 4, "layout": layout, "sync_each_batch": not waits})
    with fake_ranks(4) as case.draft.ranks, prepare(plan, case.draft, members()) as step:
        if setting:
            switch = getattr(step.model, setting)

            def noted(on: bool) -> None:
                switched.append(on)
                switch(on)

            vars(step.model)[setting] = noted
        with pytest.raises(TypeError, match="NoneType"):
            step(StepBatch([None, None], (0.5, 0.5)))
        assert switched == ([False, True] if waits else [])
        switched.clear()
        part = case.step_batch(plan).parts[0]
        step(StepBatch([part] * 4, (0.5, 0.25, 0.25, 0.0)))  # the last one does not count
        assert switched == ([False, True] * 2 if waits else [])
    assert case.draft.accumulating is nullcontext
