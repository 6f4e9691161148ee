"""Rows of the fault matrix in which times are wrong: F38, F49, F50. The answer is proven and inside the budget."""

import random
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
import torch

import autofit
from autofit.core.errors import ClockError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices import base
from autofit.devices.base import Device
from autofit.probing import timing
from autofit.search.search import run
from tests.digests import digest_of
from tests.fakes import small_bench, tuning_of
from tests.probing import targets
from tests.probing.benches import bench_of

BUDGET = "64MiB"


@pytest.mark.fault("F38")
@pytest.mark.parametrize(("above", "regret"), [(8, 0.05), (32, 0.05), (16, 0.35)])
def test_f38_sizes_that_spill_and_run_five_times_slower_are_not_chosen(above: int, regret: float) -> None:
    """As where a driver moves what does not fit to main memory, and no allocation fails.

    A search does not always try the last size before the cliff: above 16, it keeps the user's own size, which is 8.
    """

    def spilling(plan: Plan) -> float:
        return 5.0 if plan.micro_batch_size > above else 1.0

    bench = small_bench(budget_bytes=2**40, slower=spilling)
    findings = run(tuning_of(bench))
    assert findings.plan.micro_batch_size <= above
    assert bench.regret(findings.plan) < regret
    assert len([plan for plan in bench.probes() if plan.micro_batch_size > above]) <= 6, "few probes beyond the cliff"


def tuned(**changes: Any) -> autofit.Fit:
    """Returns the answer of a search on a small model, after checking that everything is as it was."""
    model = targets.mlp()
    before = digest_of(model)
    options: dict[str, Any] = {"device": "cpu", "memory_budget": BUDGET, "time_budget": 20.0}
    try:
        return autofit.tune(
            model, targets.vectors(), global_batch_size=16, strategies=("batching",), study=":memory:", progress=False,
            **options | changes,
        )  # fmt: skip
    finally:
        assert digest_of(model) == before


def inverse(seconds: float) -> float:
    return 1e-6 / max(seconds, 1e-9)


def drawn(seconds: float) -> float:
    return draws.lognormvariate(-7.0, 2.0)


draws = random.Random(0)


@pytest.mark.slow
@pytest.mark.fault("F49")
@pytest.mark.parametrize("distorted", [inverse, drawn])
def test_f49_distorted_timings_spoil_neither_proof_nor_state(
    distorted: Callable[[float], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Device.timed

    def timed(self: Device, work: Callable[[], Any]) -> tuple[Any, float]:
        result, seconds = real(self, work)
        return result, distorted(seconds)

    monkeypatch.setattr(Device, "timed", timed)
    fit = tuned()
    assert fit.proof.worst_steps == 3
    assert fit.proof.proven
    assert fit.proof.memory.judged_bytes <= fit.answer.budget.memory_bytes
    assert fit.plan.global_batch_size == 16
    assert "samples/s" in str(fit)


def ticking(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    monkeypatch.setattr(base, "perf_counter", clock)
    monkeypatch.setattr(timing, "perf_counter", clock)


def proven() -> Outcome:
    with bench_of(targets.make_mlp()) as bench:
        return bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)


@pytest.mark.fault("F50")
@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_f50_one_jump_of_the_clock_is_one_bad_sample_of_several(jump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    for at in range(6, 80):  # how many calls are of the warm-up depends on the machine
        jumps = accumulate(jump_s if call == at else 0.0 for call in range(10**6))
        ticking(monkeypatch, lambda jumps=jumps: time.perf_counter() + next(jumps))  # type: ignore[misc]
        found = proven().measurement
        assert found is not None
        assert found.proven
        assert 0 < found.step_time_s < 60
        assert min(found.step_times_s) > 0
        most = max(most, found.timed_steps)
        if max(found.step_times_s) > 3000 or (jump_s < 0 and found.timed_steps < most):  # that sample was left out
            return
    pytest.fail("none of the jumps was in a measured step")


@pytest.mark.fault("F50")
def test_f50_a_clock_that_gives_no_number_is_not_blamed_on_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the warm-up it was an error of the user's code, with the words of pydantic."""
    found = list[str]()
    for at in range(24):
        calls = iter(range(10**6))

        def clock(calls: Any = calls, at: int = at) -> float:
            return float("nan") if next(calls) == at else time.perf_counter()

        ticking(monkeypatch, clock)
        try:
            found.append(proven().status)
        except ClockError as error:
            found.append("nan" if "nan" in str(error) else str(error))
    assert set(found) == {"nan", Status.MEASURED}


def test_distortions_are_of_every_step() -> None:
    assert inverse(0.001) == pytest.approx(0.001)
    assert inverse(0.01) < inverse(0.001) < inverse(0.0001)
    assert len({drawn(1.0) for _ in range(9)}) == 9
    assert torch.tensor([drawn(1.0) for _ in range(99)]).gt(0).all()
