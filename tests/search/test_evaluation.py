"""The search of evaluation: its share of the time, its budget, and what its failure costs."""

from typing import Any

import pytest

from autofit.core.answer import Answer
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    Busy,
    DevicePoisoned,
    NothingFits,
    RestoreError,
    UserCodeError,
    WorkloadError,
)
from autofit.search.request import Request
from autofit.search.search import TIME_SHARE, training_request, with_evaluation
from tests.recorded import recorded_search


def answer() -> Answer:
    found = recorded_search().answer
    assert found is not None
    return found


def test_the_search_of_the_training_leaves_a_share_of_the_time() -> None:
    assert training_request(Request(time_s=100.0)).time_s == pytest.approx(100 * (1 - TIME_SHARE))
    assert training_request(Request()).time_s is None


def asked_for(training: Answer, options: Options, request: Request, clock: Clock) -> tuple[Options, Request, Clock]:
    """Returns what the search of evaluation is asked."""
    asked: list[tuple[Options, Request, Clock]] = []

    def search(*what: Any) -> Answer:
        asked.append(what)
        return answer()

    with_evaluation(training, options, request, clock, search)
    return asked[0]


def test_evaluation_has_the_budget_of_the_training_and_counts_what_that_keeps() -> None:
    found = answer()
    memory = found.proof.memory.model_copy(update={"static_bytes": 4096})
    found = found.model_copy(update={"proof": found.proof.model_copy(update={"memory": memory})})
    options = Options(memory_budget=0.5, numerics="exact", pinned={"precision": "bf16"}, cold=True, seed=3)
    asked, _, _ = asked_for(found, options, Request(), Clock())
    assert asked.memory_budget == found.budget.memory_bytes
    assert asked.resident_bytes == 4096
    assert (asked.pinned, asked.cold, asked.numerics, asked.seed) == ({}, False, "exact", 3)


def test_the_answer_has_that_of_evaluation() -> None:
    found = answer()
    assert with_evaluation(found, Options(), Request(), Clock(), lambda *asked: found).evaluation == found


def test_evaluation_is_searched_in_what_is_left_of_the_call() -> None:
    times = iter((5.0, 35.0))
    request = Request(time_s=100.0, planned_steps=10, title="train.py", study="s.db")
    _, second, clock = asked_for(answer(), Options(), request, Clock(now=lambda: next(times)))
    assert (second.time_s, clock.limit_s) == (70.0, 70.0)
    assert (second.planned_steps, second.title, second.study) == (None, "evaluation of train.py", "s.db")


def failing(error: AutofitError) -> Answer:
    def search(options: Options, request: Request, clock: Clock) -> Answer:
        raise error

    return with_evaluation(answer(), Options(), Request(), Clock(), search)


@pytest.mark.parametrize("kind", [NothingFits, UserCodeError, BudgetSpent, WorkloadError, Busy])
def test_evaluation_that_fails_is_a_caveat(kind: type[AutofitError]) -> None:
    found = failing(kind("found this and that"))
    assert found.evaluation is None
    assert found.caveats == (*answer().caveats, "no plan for evaluation was found: found this and that")


@pytest.mark.parametrize("kind", [DevicePoisoned, RestoreError])
def test_what_was_lost_is_raised(kind: type[AutofitError]) -> None:
    with pytest.raises(kind, match="lost"):
        failing(kind("lost"))
