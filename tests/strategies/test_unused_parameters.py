"""What a pass may leave without a gradient: found by passes without data, with conditions answered both ways."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from autofit.core.errors import Untraceable
from autofit.strategies import layout as layouts
from autofit.strategies.base import Facts
from autofit.tracing.tracing import rehearse
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload
from tests.strategies.test_layout import facts, offered, reasons


class Spare(nn.Module):
    """Uses one of two layers, and also the other one if the input is long."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(x)
        return self.spare(found) if len(x) > 4 else found


def ran(model: nn.Module, samples: int) -> Callable[..., bool]:
    def run(watch: Any) -> bool:
        with watch(model):
            model(torch.randn(samples, 4)).sum().backward()
        return False

    return run


def test_ranks_look_for_parameters_without_a_gradient_if_there_are_some() -> None:
    given = facts(Spare())
    for samples, looks in ((8, False), (2, True)):
        ways: list[dict[str, Any]] = [{}, {"layout": "optimizer"}, {"pinned": {"layout": "full"}}]
        for changes in ways:
            asked: dict[str, Any] = {"rehearse": ran(given.model, samples), **changes}
            found = offered(replace(given, **asked))
            assert found.get("find_unused_parameters") == ((True,) if looks else None)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in given.model.parameters())
    assert "find_unused_parameters" not in offered(replace(given, rehearse=ran(given.model, 2), layout="tensor"))


class Skipping(Spare):
    """Skips a layer at random."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.used(x)
        return self.spare(found) if self.draw() > -1.0 else found  # in this pass it does not


@pytest.mark.parametrize(("draw", "looks"), [(random.random, True), (numpy.random.rand, True), (lambda: 0.5, False)])
def test_a_pass_that_draws_random_numbers_may_leave_some_out(draw: Callable[[], float], looks: bool) -> None:
    given = facts(Skipping(draw))
    found = offered(replace(given, rehearse=ran(given.model, 2)))
    assert found.get("find_unused_parameters") == ((True,) if looks else None)


def test_shards_with_other_parameters_left_out_on_each_rank_need_a_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = facts(Spare())
    needy = replace(given, rehearse=ran(given.model, 2))
    assert "full" in offered(needy)["layout"]
    monkeypatch.setattr(layouts, "takes_unused", lambda: False)
    assert offered(needy)["layout"] == ("replicated", "optimizer")
    assert "from torch 2.13 on" in reasons(needy)["layout=full"]
    assert "full" in offered(replace(needy, pinned={"find_unused_parameters": False}))["layout"]
    assert "full" in offered(replace(given, rehearse=ran(given.model, 8)))["layout"]


def test_a_step_that_depends_on_its_data_may_leave_some_out_and_the_user_may_know_better() -> None:
    def cannot(watch: Any) -> bool:
        raise Untraceable("it asks for a value", "in forward")

    given = replace(facts(Spare()), rehearse=cannot)
    assert offered(given)["find_unused_parameters"] == (True,)
    assert offered(replace(given, pinned={"find_unused_parameters": False}))["find_unused_parameters"] == (False,)
    given = replace(given, rehearse=ran(given.model, 8), pinned={"find_unused_parameters": True})
    assert offered(given)["find_unused_parameters"] == (True,)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.other(self.one(x).relu())
        return x + found


class Deep(nn.Module):
    """Has blocks, each of which runs if a condition is true."""

    def __init__(self, condition: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList(Block() for _ in range(3))
        self.condition = condition

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if self.condition(x) else x
        return x


def checked(x: torch.Tensor) -> bool:
    if not x.isfinite().all():
        raise ValueError("not finite")
    return True


def deep(condition: Callable[[torch.Tensor], Any]) -> Facts:
    """Returns the facts of a deep model whose step can run without data."""
    model, batch = Deep(condition), torch.zeros(2, 4)
    rule = LossRule("step_fn", lambda model, batch: model(batch).sum(), False, "")
    run: Any = partial(rehearse, Workload(model, [batch]), rule, Counted(batch, 2))
    return facts(model, rehearse=run)


@pytest.mark.parametrize(
    ("condition", "skips"),
    [
        (lambda x: torch.rand(()) > 0.1, True),
        (lambda x: torch.rand(1).item() > 0.1, True),
        (lambda x: not torch.rand(()) < 0.1, True),
        (lambda x: x.mean() > 0, True),
        (lambda x: True, False),
        (lambda x: [bool(x.isfinite().all())], False),
        (checked, False),
    ],
)
def test_blocks_that_a_condition_may_skip_are_not_divided_unless_the_user_says_so(
    condition: Callable[[torch.Tensor], Any], skips: bool
) -> None:
    given = deep(condition)
    assert ("find_unused_parameters" in offered(given)) is skips
    assert ("full" in offered(given)["layout"]) is not skips
    assert ("a pass may skip blocks.0" in reasons(given).get("layout=full", "")) is skips
    assert ("full" in offered(replace(given, pinned={"layout": "full"}))["layout"]) is not skips
    assert "full" in offered(replace(given, pinned={"find_unused_parameters": True}))["layout"]


def test_blocks_that_no_pass_runs_are_no_reason_against_dividing_them() -> None:
    given = deep(lambda x: bool(x.isfinite().all()) and False)
    assert offered(given)["find_unused_parameters"] == (True,)
    assert "full" in offered(given)["layout"]
