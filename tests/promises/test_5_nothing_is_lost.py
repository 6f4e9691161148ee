"""Promise 5: each finished trial is on disk before the next one starts; a failure costs one trial."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from autofit.core.errors import AutofitError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.search.search import run
from tests.fakes import always, small_bench, tuning_of
from tests.promises.conftest import Tuned
from tests.study.samples import reopen


def test_each_finished_trial_is_on_disk_before_the_next_one_starts(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "study.db"
    fields: dict[str, Any] = {"facts": bench.space.facts, "memory_bytes": bench.budget_bytes}
    finished: list[Plan] = []

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if purpose is Purpose.PROBE:
            assert {trial.plan.key for trial in reopen(path, **fields).earlier()} >= {done.key for done in finished}
            finished.append(plan)
        return bench.evaluate(plan, purpose)

    run(tuning_of(bench, reopen(path, **fields), evaluate=evaluate))
    assert len(finished) > 5


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path, first = tmp_path / "study.db", small_bench()
    fields: dict[str, Any] = {"facts": first.space.facts, "memory_bytes": first.budget_bytes}

    def stopped(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if len(first.probes()) == 6:
            raise KeyboardInterrupt
        return first.evaluate(plan, purpose)

    found = run(tuning_of(first, reopen(path, **fields), evaluate=stopped))
    assert found.interrupted
    assert found.plan in first.probes()
    second = small_bench()
    run(tuning_of(second, reopen(path, **fields)))
    again = {plan.key for plan in second.probes()} & {plan.key for plan in first.probes()}
    assert len(again - {first.space.baseline.key}) <= 1  # the baseline and the best known plan are measured anew


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT, Status.POISONED])
def test_a_failure_costs_one_trial(status: Status) -> None:
    best = run(tuning_of(small_bench())).plan
    bench = small_bench()
    bench.faults[best.key] = always(status)
    found = run(tuning_of(bench, isolated=True))
    assert found.plan != best
    assert bench.probes().count(best) <= 2
    assert bench.regret(found.plan) < 0.03


def test_what_hangs_ends_with_the_time_budget(untuned: Tuned) -> None:
    def hang(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        while True:
            model(batch[0])

    began_s = time.monotonic()
    with pytest.raises(AutofitError):
        untuned.tune(loss_fn=None, step_fn=hang, time_budget=4.0)
    assert time.monotonic() - began_s < 15  # overtime, putting back, and the start on a loaded machine
