"""A plan becomes a step with its strategies applied in order, or nothing is applied."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import batches_of, prepare
from autofit.strategies import members
from autofit.strategies.base import Offer, Phase, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft
from autofit.workloads.update import rule_of_update
from tests.probing import targets
from tests.workloads import gans


class Recording(Strategy):
    """Writes into a shared list when it is applied and undone."""

    def __init__(self, name: str, phase: Phase, record: list[str], fails: bool = False) -> None:
        self.name, self.phase, self.owns = name, phase, {name: None}  # type: ignore[misc]  # a strategy per instance
        self.record, self.fails = record, fails

    def offer(self, facts: Any) -> Offer:
        return Offer()

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        if self.fails:
            raise SpaceError(f"{self.name} cannot be applied")
        self.record.append(f"+{self.name}")
        try:
            yield
        finally:
            self.record.append(f"-{self.name}")


def draft() -> Draft:
    model = targets.mlp()
    loss = LossRule("loss", targets.token_mean, inferred=False, about="")
    return Draft(model, loss, torch.optim.SGD(model.parameters()), torch.device("cpu"))


def test_strategies_are_applied_by_phase_and_undone_in_reverse() -> None:
    record: list[str] = []
    phases = {"last": Phase.BATCHING, "first": Phase.MEMORY_FORMAT, "middle": Phase.ARITHMETIC}
    strategies = [Recording(name, phase, record) for name, phase in phases.items()]
    plan = Plan(values=dict.fromkeys(phases, 1))
    step = prepare(plan, draft(), strategies)
    assert record == ["+first", "+middle", "+last"]
    assert step.plan is plan
    step.close()
    assert record[3:] == ["-last", "-middle", "-first"]


def test_an_unknown_knob_is_refused_before_anything_is_applied() -> None:
    record: list[str] = []
    with pytest.raises(SpaceError, match=r"the knobs magic, .*expected first\. Install") as error:
        prepare(Plan(values={"magic": 3, "first": 1}), draft(), [Recording("first", Phase.MEMORY_FORMAT, record)])
    assert record == []
    assert "first, which" not in str(error.value)


def test_a_failure_of_the_second_strategy_undoes_the_first() -> None:
    record: list[str] = []
    strategies = [
        Recording("first", Phase.MEMORY_FORMAT, record),
        Recording("second", Phase.OPTIMIZER, record, fails=True),
        Recording("third", Phase.BATCHING, record),
    ]
    with pytest.raises(SpaceError, match="second cannot be applied"):
        prepare(Plan(values={"first": 1, "second": 1, "third": 1}), draft(), strategies)
    assert record == ["+first", "-first"]


def test_the_empty_plan_changes_nothing_with_the_real_strategies() -> None:
    made = draft()
    assert made.optimizer is not None
    before = {name: getattr(made, name) for name in Draft.__slots__}
    groups = [dict(group) for group in made.optimizer.param_groups]
    forwards = [module.forward for module in made.model.modules()]
    with prepare(Plan(), made, members()):
        assert {name: getattr(made, name) for name in Draft.__slots__} == before
        assert [dict(group) for group in made.optimizer.param_groups] == groups
        assert [module.forward for module in made.model.modules()] == forwards


def test_a_real_plan_is_applied_and_taken_back() -> None:
    made = draft()
    plan = Plan(values={"precision": "fp16", "optimizer_implementation": "for-loop", "micro_batch_size": 4})
    with prepare(plan, made, members()):
        assert made.scaler is not None
        assert made.optimizer is not None
        assert made.optimizer.param_groups[0]["foreach"] is False
    assert made.scaler is None
    assert made.optimizer.param_groups[0]["foreach"] is None


def test_the_batches_of_a_plan_pass_through_each_strategy_by_phase() -> None:
    order: list[str] = []

    class Passing(Recording):
        def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
            order.append(self.name)
            return source.by_length if self.name == "middle" else source

    phases = {"last": Phase.BATCHING, "first": Phase.MEMORY_FORMAT, "middle": Phase.ARITHMETIC}
    source = source_of(targets.sentences())
    found = batches_of(
        Plan(values=dict.fromkeys(phases, 1)), source, [Passing(name, phase, []) for name, phase in phases.items()]
    )
    assert order == ["first", "middle", "last"]
    assert found is source.by_length
    assert batches_of(Plan(), source, members()) is source


@pytest.mark.parametrize("values", [{"compile": "model"}, {"activation_offload": True}])
def test_a_plan_that_would_change_the_inside_of_a_users_step_is_refused(values: dict[str, Any]) -> None:
    made = Draft.of(gans.workload(), rule_of_update(gans.update), torch.device("cpu"))
    with pytest.raises(SpaceError, match=f"the knobs {next(iter(values))}, but update_fn does the whole optimizer"):
        prepare(Plan(values=values), made, members())


def test_a_plan_that_acts_on_modules_and_on_each_optimizer_is_applied() -> None:
    workload = gans.workload()
    made = Draft.of(workload, rule_of_update(gans.update), torch.device("cpu"))
    plan = Plan(values={"micro_batch_size": 8, "optimizer_implementation": "fused", "checkpointed_blocks": 2})
    optimizers = workload.optimizer
    assert isinstance(optimizers, dict)
    with prepare(plan, made, members()) as step:
        assert all(each.param_groups[0]["fused"] for each in optimizers.values())
        assert sum("forward" in vars(module) for module in step.model.modules()) == 2
    assert all(each.param_groups[0]["fused"] is None for each in optimizers.values())
    assert not any("forward" in vars(module) for module in made.model.modules())
