"""The survey puts knobs and sizes in play, and gives a reason for whatever it leaves out."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.budget import Clock
from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Conflict, Refusal, SpaceFacts
from autofit.gates.gradients import Steps
from autofit.prepare import prepare
from autofit.probing.survey import Survey
from autofit.probing.watchdog import Watchdog
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, TrainStep
from tests.probing import targets

BATCHING = next(member for member in members() if member.name == "batching")
PRECISION = next(member for member in members() if member.name == "precision")


class Offering(Strategy):
    """A strategy that offers one knob and does nothing."""

    phase = Phase.MODULES

    def __init__(self, name: str, values: tuple[Any, ...], conflicts: str | None = None) -> None:
        self.name, self.owns = name, {name: None}  # type: ignore[misc]  # a strategy per instance
        self.values, self.conflicts = values, conflicts

    def offer(self, facts: Facts) -> Offer:
        knob = Knob(name=self.name, values=self.values, default=self.values[0])
        return Offer((knob,), (Refusal(name=f"{self.name}=never", reason="not here"),))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        yield

    def conflict(self, plan: Plan) -> str | None:
        both = plan.values.get(self.name) == self.values[-1] and plan.values.get(self.conflicts or "")
        return f"{self.name} does not go with {self.conflicts}" if both else None


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def survey_of(
    *strategies: Strategy, model: nn.Module | None = None, loader: Any = None, loss: Any = cross_entropy, **facts: Any
) -> Survey:
    model = targets.mlp() if model is None else model
    loader = targets.vectors() if loader is None else loader
    source = source_of(loader)
    optimizer = facts.pop("optimizer", torch.optim.SGD(model.parameters()))

    def build(plan: Plan) -> TrainStep:
        rule = LossRule("loss", loss, inferred=False, about="")
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu")), [*members(), *strategies])

    given: dict[str, Any] = {"numerics": "mixed", "training": True, "micro_batch_size": source.user_batch_size} | facts
    known = Facts(
        model=model,
        batch=source.typical(1 if source.resizable else source.user_batch_size, 1)[0],
        optimizer=optimizer,
        device_type="cpu",
        capabilities=frozenset({"bf16", "fp16"}),
        dataset_size=source.length,
        resizable=source.resizable,
        **given,
    )
    return Survey(known, strategies, Steps(build), source)


def test_knobs_with_a_choice_are_in_play_and_refusals_are_kept() -> None:
    survey = survey_of(Offering("a", (1, 2)), Offering("only", (1,)))
    space = survey.run()
    assert [knob.name for knob in space.knobs] == ["a"]
    assert {refusal.name for refusal in space.refused} == {"a=never", "only=never"}
    assert space.baseline == Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, "a": 1})
    assert space.sizes == (8,)  # batching was not among the strategies


def test_conflicts_are_found_for_every_combination() -> None:
    space = survey_of(Offering("a", (0, 1)), Offering("b", (0, 1, 2), conflicts="a")).run()
    assert space.forbidden == (Conflict(values={"a": 1, "b": 2}, reason="b does not go with a"),)


class Objecting(Offering):
    """Objects to its last value beside the last of "a", as its offer says of this workload."""

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob, and the objection."""
        last = {self.name: self.values[-1], "a": 1}
        objection = lambda plan: "not here" if all(plan.values.get(n) == v for n, v in last.items()) else None  # noqa: E731
        return replace(super().offer(facts), objection=objection)


def test_what_an_offer_objects_to_on_this_workload_is_a_conflict() -> None:
    space = survey_of(Offering("a", (0, 1)), Objecting("b", (0, 1))).run()
    assert [(dict(each.values), each.reason) for each in space.forbidden] == [({"a": 1, "b": 1}, "not here")]


def test_too_many_plans_are_refused() -> None:
    strategies = [Offering(f"k{at}", tuple(range(10))) for at in range(6)]
    assert len(survey_of(*strategies).run().knobs) == 6
    with pytest.raises(SpaceError, match=r"more than 1,000,000 plans: combinations of k0, .*k6, at up to 1 micro"):
        survey_of(*strategies, Offering("k6", (0, 1))).run()


def global_batch(total: int, **more: Any) -> SpaceFacts:
    survey = survey_of(BATCHING, global_batch_size=total, micro_batch_size=8, accumulation_steps=total // 8, **more)
    return survey.run()


def test_under_a_global_batch_its_divisors_are_in_play() -> None:
    assert global_batch(24).sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert global_batch(24).refused == ()


def test_refusals_of_the_device_come_last() -> None:
    found = survey_of(PRECISION, Offering("a", (1, 2)), BATCHING, global_batch_size=24, accumulation_steps=3).run()
    assert [(refusal.name, refusal.origin) for refusal in found.refused] == [
        ("a=never", ""),
        ("precision=tf32", "device"),
    ]


def test_no_value_leaves_the_search_for_want_of_time_and_no_step_runs() -> None:
    """Its check comes when a plan is about to become the answer."""

    def never(model: nn.Module, batch: Any) -> torch.Tensor:
        raise AssertionError("a step ran")

    survey = survey_of(PRECISION, BATCHING, loss=never, global_batch_size=24, accumulation_steps=3)
    with Watchdog(Clock(limit_s=0.5)) as survey.watch:
        space = survey.run()
    assert space.sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert [knob.values for knob in space.knobs] == [("fp32", "bf16", "fp16")]


def test_a_look_that_takes_too_long_finds_nothing_and_ends_no_search() -> None:
    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(60.0)
        return cross_entropy(model, batch)

    class Looking(Offering):
        def offer(self, facts: Facts) -> Offer:
            assert facts.profile is not None
            assert facts.profile(Plan(), list(facts.model.children()), lambda *_: True) == ()
            return super().offer(facts)

    survey = survey_of(Looking("layers", (0, 1)), loss=slow)
    began = time.monotonic()
    with Watchdog(Clock(limit_s=0.5)) as survey.watch:
        assert [knob.name for knob in survey.run().knobs] == ["layers"]
    assert time.monotonic() - began < 30.0
