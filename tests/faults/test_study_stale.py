"""F57, defect 2: what a study has is not used for a workload that computes something else."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autofit
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_plan
from autofit.fit import Fit
from autofit.search.request import Findings
from autofit.search.search import run
from tests.fakes import FakeBench, MemoryLog, small_bench, tuning_of
from tests.study.samples import PLAN, measured, reopen

# The same study, another workload: two cases of the audit


class Repeated(nn.Module):
    def __init__(self, reps: int) -> None:
        super().__init__()
        self.layer, self.reps, self.step_count = nn.Linear(8, 8), reps, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step_count += 1
        for _ in range(self.reps):
            x = torch.tanh(self.layer(x))
        return x


def cheap(x: torch.Tensor) -> torch.Tensor:
    return x


def dear(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = torch.tanh(x)
    return x


def tuned(study: Path, model: nn.Module, helper: Callable[[torch.Tensor], torch.Tensor] = cheap) -> Fit:
    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(helper(model(batch[0])), batch[1])

    batches = [(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(3)]
    return autofit.tune(
        model, batches, step_fn=step, study=study, progress=False, memory_budget="64MiB", strategies=["batching"],
        global_batch_size=4,
    )  # fmt: skip


@pytest.mark.fault("F57")
def test_defect_02_an_attribute_of_the_model_makes_it_another_workload(tmp_path: Path) -> None:
    once = tuned(tmp_path / "s.journal", Repeated(1))
    many = tuned(tmp_path / "s.journal", Repeated(30))
    assert once.answer.environment.differences(many.answer.environment)
    assert any("of another environment left out: attributes" in caveat for caveat in many.caveats)


@pytest.mark.fault("F57")
def test_defect_02_a_helper_of_the_step_makes_it_another_workload(tmp_path: Path) -> None:
    tuned(tmp_path / "s.journal", Repeated(1))
    other = tuned(tmp_path / "s.journal", Repeated(1), dear)
    assert any("of another environment left out" in caveat and "code: " in caveat for caveat in other.caveats)


def test_the_same_workload_goes_on_after_it_was_trained(tmp_path: Path) -> None:
    model = Repeated(1)
    first = tuned(tmp_path / "s.journal", model)
    for _ in range(3):
        model(torch.randn(4, 8))
    again = tuned(tmp_path / "s.journal", model)
    assert not first.answer.environment.differences(again.answer.environment)
    # A busy machine may well be slower now, and earlier speeds are then dropped: the workload is the same all the same.
    assert not any("left out" in caveat or "workload has changed" in caveat for caveat in again.caveats)


# What no signature shows: measurements that contradict each other


def searched(bench: FakeBench, past: MemoryLog | None = None) -> tuple[Findings, MemoryLog]:
    log = MemoryLog(tuple(t.model_copy(update={"earlier": True}) for t in past.finished) if past else ())
    return run(tuning_of(bench, log)), log


def test_a_machine_that_has_become_slower_keeps_the_earlier_trials_and_says_so_once() -> None:
    _, past = searched(small_bench())
    slow = small_bench(slower=lambda plan: 5.0)
    findings, log = searched(slow, past)
    own = slow.space.baseline
    best = slow.probes()[0]
    assert best != own
    assert slow.probes()[1:3] == [own, own]  # one disturbed probe is no proof
    gone = {own, best, *slow.probes(Purpose.BLOCK), *slow.probes(Purpose.PROOF)}
    kept = {trial.plan for trial in log.past}
    assert kept >= {trial.plan for trial in past.finished} - gone
    assert not kept & {own, best}
    assert len(kept) > 2
    assert 2 <= len(log.dropped) <= len(gone)
    (said,) = [caveat for caveat in findings.caveats if "dropped" in caveat]
    assert said.startswith("the speed or the free memory of this machine has changed since earlier runs")
    assert "samples/s, was" in said
    assert "tune again when it is idle" in said


def test_one_disturbed_plan_takes_only_its_own_trials_along() -> None:
    first, past = searched(small_bench())
    best = first.plan
    bench = small_bench(slower=lambda plan: 3.0 if plan == best else 1.0)
    findings, log = searched(bench, past)
    assert {reason.partition(" now shows")[0] for reason in log.dropped} == {str(best)}
    kept = {trial.plan for trial in log.past}
    assert kept == {trial.plan for trial in past.finished} - {best}
    (said,) = [caveat for caveat in findings.caveats if "dropped" in caveat]
    assert f"first because {describe_plan(best, bench.space.baseline)} now shows" in said  # not every knob


def test_defect_02_the_peak_of_the_baseline_contradicts_too() -> None:
    _, past = searched(small_bench())
    findings, log = searched(small_bench(extra_mib=lambda plan: 300.0), past)
    assert len(log.dropped) == 1
    assert "of live tensors, was" in log.dropped[0]
    assert not any(trial.earlier for trial in findings.trials)
    (said,) = [caveat for caveat in findings.caveats if "dropped" in caveat]
    assert "trials of earlier runs were dropped" in said
    assert "The workload has changed" in said


def test_one_disturbed_probe_of_the_baseline_drops_nothing() -> None:
    _, past = searched(small_bench())
    bench = small_bench()
    slow = [5.0]
    bench.slower = lambda plan: slow.pop() if slow and plan == bench.space.baseline else 1.0
    findings, log = searched(bench, past)
    assert log.dropped == []
    assert bench.probes()[1:] == [bench.space.baseline] * 2
    assert any(trial.earlier for trial in findings.trials)


def test_noise_drops_nothing() -> None:
    for seed in range(10):
        bench = small_bench(seed=seed)
        _, past = searched(bench)
        assert searched(small_bench(seed=seed + 100), past)[1].dropped == []


def test_defect_02_a_race_or_proof_that_contradicts_the_study_drops_its_plan_for_later_runs() -> None:
    first, past = searched(small_bench())
    bench = small_bench(slower=lambda plan: 1.0 if plan == first.baseline.plan else 4.0)
    findings, log = searched(bench, past)
    assert log.dropped
    assert not any(str(first.baseline.plan) in reason for reason in log.dropped)
    assert any("tune again" in caveat for caveat in findings.caveats)
    assert findings.plan == first.baseline.plan or findings.gain is not None


def test_the_baseline_is_measured_once_a_run_and_once_in_a_new_study() -> None:
    bench = small_bench()
    _, past = searched(bench)
    assert bench.probes().count(bench.space.baseline) == 1
    again = small_bench()
    searched(again, past)
    assert again.probes()[1:] == [again.space.baseline]


def test_a_baseline_that_ended_its_process_twice_is_not_run_a_third_time() -> None:
    bench = small_bench()
    plans = [plan for plan in dict.fromkeys(bench.space.at(bench.space.baseline.combination, s) for s in (16, 32))]
    died = Outcome(status=Status.CRASHED, reason="the process died while this plan ran")
    past = [Trial(number=n, plan=bench.space.baseline, outcome=died, earlier=True) for n in range(2)]
    known = small_bench().evaluate(plans[0], Purpose.PROBE)
    log = MemoryLog((*past, Trial(number=2, plan=plans[0], outcome=known, earlier=True)))
    run(tuning_of(bench, log))
    assert bench.space.baseline not in bench.probes()


# On disk


def test_defect_02_what_was_dropped_stays_dropped_and_says_why(journal: Path) -> None:
    for size in (1, 2):
        study = reopen(journal)
        study.finish(study.begin(study_plan(size), Purpose.PROBE), measured())
    study = reopen(journal)
    assert len(study.earlier()) == 2
    study.drop("micro_batch_size=1 now shows 5 samples/s, was 50")
    assert study.earlier() == ()
    study.finish(study.begin(study_plan(4), Purpose.PROBE), measured())
    for _ in range(2):
        later = reopen(journal)
        assert [trial.plan for trial in later.earlier()] == [study_plan(4)]
        (note,) = later.notes
        assert note.startswith("2 trials dropped on 2")
        assert note.endswith("micro_batch_size=1 now shows 5 samples/s, was 50")


def test_the_trials_of_a_plan_that_was_dropped_stay_dropped_and_the_others_stay(journal: Path) -> None:
    for size in (1, 2):
        study = reopen(journal)
        study.finish(study.begin(study_plan(size), Purpose.PROBE), measured())
    study = reopen(journal)
    study.drop("it is slower", study_plan(1))
    study.drop("it is slower too", study_plan(4))  # of which there is none
    for found in (study, reopen(journal)):
        assert [trial.plan for trial in found.earlier()] == [study_plan(2)]
    assert reopen(journal).notes[0].startswith("1 trial dropped on 2")


def study_plan(size: int) -> Plan:
    return PLAN.replace(micro_batch_size=size, accumulation_steps=8 // size)
