"""Whole searches on the examples' models, on cards from 1 to 80 GiB: proven inside the budget, without a trace."""

from collections.abc import Callable

import pytest
import torch

from autofit import Workload, devices
from autofit.core.briefing import Options
from autofit.core.errors import NothingFits, UsageError
from autofit.core.outcome import Status
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from tests.cuda.scaled import MAKERS, gpt, tabular
from tests.cuda.searches import GIB, check, no_trace, quick, train, tune, written
from tests.phantom.phantom import present

Card = Callable[[int], None]

# What fills a large card takes a real one minutes.
CAPACITIES = [pytest.param(gib, marks=pytest.mark.phantom if gib > 8 else ()) for gib in (1, 8, 24, 80)]
ALL_STRATEGIES = (8,)
"""On the other cards only those are searched that trade memory: a search takes half as long."""
FEW = ("batching", "checkpointing")
SMALL_CARD = 0.95
"""Of 1 GiB the default budget leaves next to nothing beside a context of 500 MiB: such a card needs one of its own."""

pytestmark = pytest.mark.usefixtures("trusted_values")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.mark.parametrize("gib", CAPACITIES)
@pytest.mark.parametrize("name", MAKERS)
def test_a_plan_is_proven_inside_the_budget(name: str, gib: int, request: pytest.FixtureRequest) -> None:
    budget = card_or_budget(gib, request)
    workload = written(MAKERS[name](gib))
    with no_trace(workload):
        fit = tune(workload, memory_budget=budget, strategies=None if gib in ALL_STRATEGIES else FEW)
    found = fit.answer
    check(found)
    assert found.budget.memory_bytes <= gib * GIB
    assert workload.global_batch_size in (None, found.plan.global_batch_size)
    assert train(fit, workload) == 0


@pytest.mark.parametrize("name", MAKERS)
def test_a_budget_holds_on_a_card_with_room(name: str, request: pytest.FixtureRequest) -> None:
    card_or_budget(40, request)
    workload = written(MAKERS[name](6))
    with no_trace(workload):
        found = tune(workload, memory_budget="4GiB", strategies=FEW).answer
        larger = largest(workload, "4GiB"), largest(workload, None)
    check(found)
    assert found.budget.memory_bytes == 4 * GIB
    assert [status.does_not_fit for status in larger] == [True, False]


def largest(workload: Workload, budget: str | None) -> Status:
    """Returns what becomes of the user's own setting with the largest micro batch."""
    options = Options(memory_budget=budget, strategies=("batching",), enforce=True)
    with LocalBench(workload, devices.choose("cuda"), options) as bench:
        space = SearchSpace(bench.briefing.space)
        size = min(space.sizes[-1], 256)
        return bench.evaluate(space.at(space.baseline.combination, size), Purpose.PROBE).status


@pytest.mark.phantom
def test_the_budget_decides_and_not_the_card(card: Card) -> None:
    plans = []
    for gib in (8, 80):
        card(gib * GIB)
        found = tune(gpt(6), memory_budget="6GiB", strategies=FEW).answer
        plans.append((found.plan, found.proof.memory, found.proof.step_time_s))
    assert plans[0] == plans[1]


@pytest.mark.phantom
@pytest.mark.usefixtures("whole_search")
def test_a_larger_budget_is_never_slower() -> None:
    # Beside a context of 500 MiB and 45 of weights and optimizer state.
    budgets = ("570MiB", "640MiB", "1GiB")
    found = [tune(tabular(0.05, 512), memory_budget=budget, strategies=FEW).answer for budget in budgets]
    speeds = [each.proof.samples_per_s for each in found]
    assert speeds == sorted(speeds)
    assert speeds[0] < 0.9 * speeds[-1]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.usefixtures("whole_search")
def test_too_small_a_budget_says_that_nothing_fits(name: str) -> None:
    workload = written(MAKERS[name](80))
    with no_trace(workload), pytest.raises(NothingFits) as raised:
        tune(workload, memory_budget="768MiB", strategies=FEW)
    told = str(raised.value)
    assert "no plan fits into 768 MiB" in told
    assert "Give more memory, allow more strategies, or use a smaller model or shorter samples" in told
    assert "the smallest estimated peak is" in told
    assert "above the budget" in told


@pytest.mark.phantom
@pytest.mark.usefixtures("whole_search")
def test_a_card_too_small_for_two_samples_says_so(card: Card) -> None:
    card(2 * GIB)
    workload = written(gpt(80))
    with no_trace(workload), pytest.raises(NothingFits, match=r"not even two samples fit: .* Give more memory"):
        tune(workload)


def test_a_budget_above_the_card_is_refused_before_anything_runs() -> None:
    workload = written(tabular(1))
    with no_trace(workload), pytest.raises(UsageError, match=r"is more than the .* of "):
        tune(workload, memory_budget=torch.cuda.mem_get_info()[1] + 1)


def card_or_budget(gib: int, request: pytest.FixtureRequest) -> float | str | None:
    """Makes a phantom a card of this size, or returns the budget that makes a real card one."""
    if not present():
        return f"{gib}GiB"
    request.getfixturevalue("card")(gib * GIB)
    return SMALL_CARD if gib == 1 else None
