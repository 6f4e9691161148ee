"""The fake bench: its truth follows from its fields, and its runs agree with it."""

import statistics

import pytest

from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from tests.fakes import MIB, OPTIMIZER, PRECISION, Effect, FakeBench, always, during, small_bench, space_of


def bench_of(**changes: float) -> FakeBench:
    """Returns a bench without noise on which every part of the peak and of the time has its own figure."""
    bench = FakeBench(
        space=space_of((PRECISION, OPTIMIZER), (1, 2, 4, 8), 2, global_batch_size=8),
        budget_bytes=100 * MIB,
        effects={
            ("precision", "bf16"): Effect(compute=0.5, activations=0.5),
            ("optimizer", "fused"): Effect(update=0.25, fixed_mib=500),
        },
        noise=0,
        drift=0,
        static_mib=10,
        gradient_mib=20,
        sample_mib=5,
        logits_mib=0,
        compute_s=0.1,
        launch_s=1,
        update_s=4,
        prepare_s=0,
    )
    for name, value in changes.items():
        setattr(bench, name, value)
    return bench


def at(bench: FakeBench, size: int, **values: str) -> Plan:
    combination = Plan(values={**bench.space.baseline.combination.values, **values})
    return bench.space.at(combination, size)


def test_peak_is_the_largest_of_the_phases() -> None:
    bench = bench_of()
    assert bench.peak_bytes(at(bench, 8)) == 58 * MIB  # backward: 10 static, 0.4 of 20 gradients, 8 samples of 5
    assert bench.peak_bytes(at(bench, 4)) == 50 * MIB  # the gradients stay during accumulation: 10 + 20 + 4 x 5
    assert bench.peak_bytes(at(bench, 1, optimizer="fused")) == 530 * MIB  # the optimizer: 10 + 20 + 500
    assert bench.peak_bytes(at(bench, 8, precision="bf16")) == 38 * MIB


def test_step_time_is_that_of_the_micro_steps_and_the_update() -> None:
    bench = bench_of()
    assert bench.step_time_s(at(bench, 8)) == pytest.approx(1 + 8 * 0.1 + 4)
    assert bench.step_time_s(at(bench, 2)) == pytest.approx(4 * (1 + 2 * 0.1) + 4)
    assert bench.step_time_s(at(bench, 8, precision="bf16", optimizer="fused")) == pytest.approx(1 + 8 * 0.05 + 1)
    assert bench.samples_per_s(at(bench, 8)) == pytest.approx(8 / 5.8)


def test_best_plan_fits_and_no_plan_that_fits_is_faster() -> None:
    bench = small_bench()
    best = bench.best()
    plans = [bench.space.at(combination, size) for combination in bench.space.combinations() for size in (4, 64)]
    assert bench.fits(best)
    assert bench.regret(best) == 0
    assert all(bench.regret(plan) >= 0 for plan in plans if bench.fits(plan))
    assert any(bench.regret(plan) < 0 for plan in plans)  # the budget decides


def test_quiet_run_measures_the_truth_and_takes_its_time() -> None:
    bench = bench_of(prepare_s=0.5)
    plan = at(bench, 8)
    outcome = bench.evaluate(plan, Purpose.PROBE)
    assert outcome.status is Status.MEASURED
    assert outcome.measurement is not None
    assert outcome.measurement.step_times_s == pytest.approx([5.8] * 2)  # slow steps are few
    assert outcome.measurement.memory.judged_bytes == bench.peak_bytes(plan)
    assert outcome.duration_s == pytest.approx(0.5 + 4 * 5.8)  # two warm-up steps
    assert bench.time.seconds == pytest.approx(outcome.duration_s)
    assert bench.probes() == [plan]
    assert bench.probes(Purpose.PROOF) == []


def test_noise_is_centred_on_the_truth_and_the_same_for_the_same_seed() -> None:
    def times(seed: int) -> list[float]:
        bench = small_bench(seed=seed, noise=0.05)
        outcomes = [bench.evaluate(bench.space.baseline, Purpose.PROBE) for _ in range(50)]
        return [second for o in outcomes if o.measurement is not None for second in o.measurement.step_times_s]

    bench = small_bench()
    assert times(1) == times(1)
    assert times(1) != times(2)
    assert statistics.median(times(1)) == pytest.approx(bench.step_time_s(bench.space.baseline), rel=0.02)
    assert 0.03 < statistics.stdev(times(1)) / statistics.mean(times(1)) < 0.07


@pytest.mark.parametrize(
    ("budget_mib", "status", "measured"),
    [(58, Status.MEASURED, True), (50, Status.OVER_BUDGET, True), (40, Status.OUT_OF_MEMORY, False)],
)
def test_plan_over_budget_is_measured_and_one_far_over_it_runs_out_of_memory(
    budget_mib: int, status: Status, measured: bool
) -> None:
    bench = bench_of(budget_bytes=budget_mib * MIB)
    outcome = bench.evaluate(at(bench, 8), Purpose.PROBE)
    assert outcome.status is status
    assert (outcome.measurement is not None) is measured
    assert bench.fits(at(bench, 8)) is (status is Status.MEASURED)


def test_fault_replaces_the_run_and_the_plan_no_longer_fits() -> None:
    bench = bench_of()
    crashed, unproven = at(bench, 8), at(bench, 4)
    bench.faults = {
        crashed.key: always(Status.CRASHED, "segfault"),
        unproven.key: during(Purpose.PROOF, Status.TIMED_OUT),
    }
    outcome = bench.evaluate(crashed, Purpose.PROBE)
    assert (outcome.status, outcome.reason) == (Status.CRASHED, "segfault")
    assert bench.evaluate(unproven, Purpose.PROBE).status is Status.MEASURED
    assert bench.evaluate(unproven, Purpose.PROOF).status is Status.TIMED_OUT
    assert not bench.fits(crashed)
    assert bench.fits(at(bench, 2))
