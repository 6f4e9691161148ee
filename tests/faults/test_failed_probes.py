"""Rows of the fault matrix in which a run fails: F08, F10 to F12, F18, F19, F24, F25."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit.core.briefing import Options
from autofit.core.errors import DevicePoisoned, UserCodeError, WorkloadError
from autofit.core.estimate import Estimate
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.failures.classify import classify
from autofit.failures.evidence import collect, scrub
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.search import run
from autofit.tracing import isolation
from tests.digests import digest_of
from tests.failures.raising import raised
from tests.fakes import MIB, FakeBench, Fixed, always, small_bench, tuning_of
from tests.faults.swallowing import LARGE
from tests.probing import targets
from tests.probing.benches import bench_of
from tests.probing.remote.test_bench import PATIENT
from tests.probing.steps import CPU, PLENTY
from tests.probing.test_loading import SIZE, Slow, found, workers_of
from tests.search.listed import calm

AMBIGUOUS = "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"
QUICK: dict[str, Any] = {
    "device": "cpu", "memory_budget": "1GiB", "time_budget": 30.0, "study": ":memory:", "strategies": ("batching",),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.fault("F08")
def test_f08_a_plan_that_runs_because_its_model_hides_an_out_of_memory_is_not_proven() -> None:
    """On a host no allocator counts what was refused: the limited process passes, the peak without a limit does not."""
    options = Options(memory_budget=f"{LARGE // 2}B", strategies=("batching",))
    target = Target(f"{Path(__file__).with_name('swallowing.py')}:make_workload", device="cpu", options=options)
    with RemoteBench(target, deadlines=PATIENT) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.status is Status.OVER_BUDGET, outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.memory.judged_bytes > LARGE


def ambiguous(bench: FakeBench, size: int = 0) -> None:
    """Lets every plan fail ambiguously whose micro batch is larger."""
    for combination in bench.space.combinations():
        for each in bench.space.sizes:
            if each > size:
                bench.faults[bench.space.at(combination, each).key] = always(Status.AMBIGUOUS, AMBIGUOUS)


@pytest.mark.fault("F10")
def test_f10_what_fails_alike_at_two_sizes_that_surely_fit_is_the_users_error() -> None:
    """It went on through every technique at the smallest size: 36 runs, and then blamed nobody."""
    bench = calm()
    ambiguous(bench)
    fits = Fixed(Estimate(value_bytes=MIB, lower_bytes=0, upper_bytes=2 * MIB))
    with pytest.raises(UserCodeError, match="CUDNN_STATUS_NOT_SUPPORTED") as error:
        run(tuning_of(bench, estimators=[fits]))
    assert "Run one training step of your own to reproduce it" in str(error.value)
    assert len({plan.micro_batch_size for plan in bench.probes()}) == 2
    assert len(bench.probes()) == 4, "each of the two ran once more"


@pytest.mark.fault("F09", "F10")
def test_f10_without_an_estimate_memory_may_be_the_reason_and_smaller_plans_are_tried() -> None:
    bench = calm()
    ambiguous(bench)
    with pytest.raises(WorkloadError, match="memory was not the reason"):
        run(tuning_of(bench))
    assert len({plan.combination for plan in bench.probes()}) > 2
    bench = calm()
    ambiguous(bench, size=4)
    findings = run(tuning_of(bench))
    assert findings.plan.micro_batch_size == 4
    assert findings.counts["out of memory"] >= 1


class Unclean(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device whose cache cannot be emptied once its user says so."""

    broken = False

    def release(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        super().release()


@pytest.mark.fault("F11")
def test_f11_a_device_whose_memory_cannot_be_released_is_poisoned_and_ends_the_search_here() -> None:
    device, workload = Unclean(), targets.make_mlp()
    before = digest_of(workload.model)
    with LocalBench(workload, device, PLENTY) as bench:
        device.broken = True
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        device.broken = False
    assert (outcome.status, outcome.phase) == (Status.POISONED, "clean-up")
    assert "unspecified launch failure" in outcome.reason
    assert digest_of(workload.model) == before
    fake = calm()
    fake.faults[fake.space.baseline.key] = lambda purpose: outcome
    with pytest.raises(DevicePoisoned):
        run(tuning_of(fake))
    assert len(fake.runs) == 1


@pytest.fixture
def hoard() -> Iterator[list[torch.Tensor]]:
    kept = list[torch.Tensor]()
    yield kept
    kept.clear()


@pytest.mark.fault("F12")
def test_f12_a_failed_run_that_leaks_is_named_and_the_next_probe_has_its_own_peak(hoard: list[torch.Tensor]) -> None:
    class Hoarding(CPU):  # type: ignore[misc]  # a class that is looked up
        def live_bytes(self) -> int:
            return sum(each.nbytes for each in hoard)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        if orders:
            hoard.append(loss * torch.ones(1024, 1024))
            if len(hoard) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss

    orders = set[str]()  # a set of texts is put back, and a test changes it outside a run
    with bench_of(targets.make_mlp(step_fn=step), Hoarding()) as bench:
        plan = bench.briefing.space.baseline
        clean = bench.evaluate(plan, Purpose.PROBE).measurement
        orders.add("leak")
        outcome = bench.evaluate(plan, Purpose.PROBE)
        orders.clear()
        again = bench.evaluate(plan, Purpose.PROBE)
    assert outcome.status is Status.OUT_OF_MEMORY
    assert "stayed on the device after the run: your code keeps" in outcome.leaked
    assert again.leaked == ""
    assert clean is not None
    assert again.measurement is not None
    assert again.measurement.memory.judged_bytes == clean.memory.judged_bytes


@pytest.mark.fault("F18")
def test_f18_a_killed_loader_worker_is_a_lost_worker_each_time() -> None:
    """The same SIGKILL shows itself in several forms (reliability.md 1.2)."""
    for _ in range(16):
        data = Slow(64, 0.0, in_worker=lambda: os.kill(os.getpid(), signal.SIGKILL))
        loader = DataLoader(data, batch_size=SIZE, num_workers=1)
        error = raised(lambda loader=loader: list(loader))  # type: ignore[misc]
        evidence = collect(error, phase="fetch")
        scrub(error)
        failure = classify(evidence)
        assert failure.status is Status.WORKER_LOST, failure.reason
        assert "use fewer loader workers" in failure.reason
        assert not failure.status.does_not_fit


@pytest.mark.fault("F19")
def test_f19_a_worker_that_dies_of_full_shared_memory_costs_no_batch_and_is_told() -> None:
    """A bus error is what a full /dev/shm gives the worker that writes to it. The cause was left out of the reason."""
    loading = found(Slow(in_worker=lambda: signal.raise_signal(signal.SIGBUS)))
    assert loading is not None
    assert "Bus error" in loading.kept, loading.kept
    assert "use fewer loader workers or a larger shared memory, not a smaller batch" in loading.kept
    assert workers_of(loading)[0] == 0
    data = Slow(64, 0.0, in_worker=lambda: signal.raise_signal(signal.SIGBUS))
    error = raised(lambda: list(DataLoader(data, batch_size=SIZE, num_workers=1)))
    failure = classify(collect(error, phase="fetch"))
    scrub(error)
    assert failure.status is Status.SHARED_MEMORY
    assert "use fewer loader workers or a larger shared memory, not a smaller batch" in failure.reason


@pytest.mark.fault("F19")
def test_f19_a_lack_of_shared_memory_at_larger_batches_does_not_make_the_batch_smaller() -> None:
    bench = small_bench()
    own = bench.space.baseline
    for combination in bench.space.combinations():
        for size in bench.space.sizes:
            if size > own.micro_batch_size:
                bench.faults[bench.space.at(combination, size).key] = always(Status.SHARED_MEMORY, "/dev/shm is full")
    findings = run(tuning_of(bench))
    assert findings.plan.micro_batch_size == own.micro_batch_size
    assert findings.counts["shared memory"] >= 1
    assert "out of memory" not in findings.counts


class Locked(nn.Module):
    """A model that cannot be pickled or copied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.lock = nn.Linear(8, 4), threading.Lock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns logits."""
        with self.lock:
            output: torch.Tensor = self.linear(x)
            return output


def tuned(model: nn.Module, **changes: Any) -> autofit.Fit:
    before = digest_of(model)
    try:
        return autofit.tune(model, targets.vectors(), **{**QUICK, "progress": False, **changes})
    finally:
        assert digest_of(model) == before


@pytest.mark.fault("F24")
def test_f24_a_model_that_cannot_be_pickled_is_tuned_in_this_process_and_named() -> None:
    fit = tuned(Locked())
    assert fit.proof.proven
    assert any("model.lock (a lock)" in caveat for caveat in fit.caveats)
    assert any("cannot be copied" in caveat and "Define __deepcopy__" in caveat for caveat in fit.caveats)


def integers(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().view(torch.int32).clone() for each in model.parameters()]


@pytest.mark.fault("F25")
def test_f25_a_forked_process_leaves_weights_in_shared_memory_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    traces, real = list[float](), isolation.trace_in_fork

    def counted(work: Callable[[], Any], limit_s: float) -> Any:
        traces.append(limit_s)
        return real(work, limit_s)

    model = targets.mlp().share_memory()
    before = integers(model)
    monkeypatch.setattr(isolation, "trace_in_fork", counted)
    assert tuned(model).proof.proven
    assert traces, "a trace ran in a forked process"
    assert all(each.untyped_storage().is_shared() for each in model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(before, integers(model), strict=True))
