"""The fewest worker processes that keep up are chosen by measurement, and nothing runs where workers cannot pay."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import autofit
from autofit.core.budget import Clock
from autofit.core.loading import Loading, LoadingTrial
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.devices.cpu import Cpu
from autofit.probing import loading as module
from autofit.probing.loading import LoaderTrials
from autofit.probing.watchdog import Watchdog
from autofit.workloads.batches import BatchSource
from autofit.workloads.sources import source_of
from tests.digests import digest_of

SAMPLE_S = 0.002
SIZE = 8


class Slow(Dataset[Any]):
    """Samples that take a while, without using a processor."""

    def __init__(self, samples: int = 4000, sample_s: float = SAMPLE_S, in_worker: Callable[[], object] = int) -> None:
        self.samples, self.sample_s, self.in_worker = samples, sample_s, in_worker

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        if get_worker_info() is not None:
            self.in_worker()
        time.sleep(self.sample_s)
        return torch.full((4,), float(at)), at % 4


def slow_source(data: Slow, **loader: Any) -> BatchSource:
    return source_of(DataLoader(data, batch_size=SIZE, **loader), scan=2)


def proof(step_s: float, sample_s: float = SAMPLE_S) -> Measurement:
    memory = Memory(allocated_bytes=1, judged_bytes=1, judged_by="test")
    return Measurement(step_times_s=(step_s,) * 3, samples_per_step=SIZE, memory=memory, fetch_s=SIZE * sample_s)


def found(data: Slow | None = None, step_s: float = 0.0, *, most: int = 8, **loader: Any) -> Loading | None:
    data = data or Slow()
    source = slow_source(data, shuffle=True, **loader)
    return LoaderTrials(source, Cpu(), most=most).run(proof(step_s or SIZE * SAMPLE_S, data.sample_s), SIZE)


def workers_of(loading: Loading) -> list[int]:
    return [trial.workers for trial in loading.trials]


def chosen(monkeypatch: pytest.MonkeyPatch, rates: dict[int, float], needed: float, most: int = 8) -> Loading:
    """Returns the choice for a loader that makes 500 samples/s in one process, and `rates` by number of workers."""

    def tried(self: LoaderTrials, workers: int) -> LoadingTrial:
        return LoadingTrial(workers=workers, samples_per_s=rates[workers])

    monkeypatch.setattr(LoaderTrials, "_tried", tried)
    loading = found(step_s=SIZE / needed, most=most)
    assert loading is not None
    return loading


def test_the_fewest_workers_that_keep_up_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = chosen(monkeypatch, {1: 450.0, 2: 900.0, 4: 1800.0}, needed=1000.0)
    assert workers_of(loading) == [0, 1, 2, 4]  # 8 are not tried
    assert (loading.workers, loading.prefetch_factor, loading.pin_memory, loading.kept) == (4, 2, None, "")


def test_the_fastest_run_of_the_plan_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that something else slowed down would need fewer workers than the training."""
    refused(monkeypatch)
    trials, slow = LoaderTrials(slow_source(Slow(samples=64)), Cpu()), proof(step_s=1.0)
    assert trials.run(slow, SIZE) is None
    needed = trials.run(slow, SIZE, fastest_per_s=1000.0)
    assert needed is not None
    assert needed.needed_per_s == 1000.0


def test_more_workers_are_tried_without_a_margin_and_used_only_if_they_train_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loading = chosen(monkeypatch, {1: 450.0, 2: 1020.0, 4: 1900.0}, needed=1000.0)
    assert (workers_of(loading), loading.workers) == ([0, 1, 2, 4], 2)


def test_a_job_that_stays_data_bound_has_the_workers_that_help(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = chosen(monkeypatch, {1: 450.0, 2: 900.0, 3: 1300.0}, needed=8000.0, most=3)
    assert (workers_of(loading), loading.workers) == ([0, 1, 2, 3], 3)
    assert (loading.samples_per_s or 0.0) < loading.needed_per_s


def test_workers_that_do_not_help_are_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = chosen(monkeypatch, {1: 600.0, 2: 610.0}, needed=8000.0)
    assert (workers_of(loading), loading.workers) == ([0, 1, 2], 1)
    worse = chosen(monkeypatch, {1: 300.0, 2: 310.0}, needed=8000.0)
    assert (worse.workers, worse.kept) == (0, "")


def test_the_speed_with_workers_is_measured_in_the_steady_state() -> None:
    """Workers that start late have their first batches ready at once, which are not counted."""
    loading = found(step_s=SIZE / 8000, most=2)
    assert loading is not None
    one, two = (trial.samples_per_s or 0.0 for trial in loading.trials[1:])
    assert one <= 1.05 / SAMPLE_S
    assert one < two <= 2.1 / SAMPLE_S
    if os.path.exists("/proc/self/smaps_rollup"):
        assert all((trial.host_bytes or 0) > 2**18 for trial in loading.trials[1:])


def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> LoadingTrial:
        raise AssertionError("no loader is to be read")

    monkeypatch.setattr(LoaderTrials, "_tried", never)


def test_nothing_runs_where_one_process_keeps_up_or_workers_cannot_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch)
    assert found(step_s=1.0) is None
    idle = found(step_s=1.0, num_workers=2)
    assert idle is not None
    assert (idle.workers, idle.kept) == (0, "")
    short = found(Slow(samples=64))
    assert short is not None
    assert "one pass over the data loads in" in short.kept
    quick = found(Slow(samples=10**6, sample_s=1e-5), step_s=1e-5)
    assert quick is not None
    assert quick.kept.startswith("a batch is made in ")
    fixed = found(step_s=0.001, num_workers=1, worker_init_fn=print)
    assert fixed is not None
    assert (fixed.workers, fixed.kept.startswith("its worker_init_fn")) == (1, True)


@pytest.mark.fault("F18")
def test_a_loader_whose_workers_crash_keeps_its_settings_with_the_reason() -> None:
    loading = found(Slow(in_worker=lambda: os._exit(3)))
    assert loading is not None
    assert loading.kept.startswith("with a worker process: RuntimeError: DataLoader worker")
    assert loading.trials[-1].samples_per_s is None


def fails() -> None:
    raise KeyError("broken on purpose in a worker")


def test_a_data_set_that_fails_in_a_worker_is_named() -> None:
    loading = found(Slow(in_worker=fails))
    assert loading is not None
    assert "KeyError" in loading.kept


@pytest.mark.leaves("the resource tracker of multiprocessing, which lives as long as a process that spawns")
@pytest.mark.fault("F24")
def test_a_data_set_that_cannot_be_sent_to_a_worker_keeps_its_settings() -> None:
    data = Slow(in_worker=lambda: None)
    source = slow_source(data, num_workers=1, multiprocessing_context="spawn")
    loading = LoaderTrials(source, Cpu(), most=2).run(proof(SIZE * SAMPLE_S), SIZE)
    assert loading is not None
    assert "local object" in loading.kept
    assert loading.workers == 1


@pytest.mark.fault("F17")
def test_a_worker_that_hangs_ends_with_the_time_of_the_trial() -> None:
    data = Slow(in_worker=lambda: time.sleep(60))
    source = slow_source(data)
    watch, began = Watchdog(Clock(limit_s=10.0)), time.monotonic()
    loading = LoaderTrials(source, Cpu(), watch, most=4).run(proof(SIZE * SAMPLE_S), SIZE)
    assert time.monotonic() - began < 9  # 1 s for the batch, and torch gives the worker 5 s to end
    assert loading is not None
    assert "timed out" in loading.kept


def test_workers_that_would_fill_the_main_memory_are_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: 2**20)
    monkeypatch.setattr(module, "_private_bytes", lambda batches: 2**20)
    loading = found(step_s=0.001)
    assert loading is not None
    assert loading.trials[-1].reason == "2 workers would need 2 MiB of 1 MiB free memory"
    assert loading.workers < 2


def test_workers_live_on_where_starting_them_again_is_felt_and_the_data_set_is_not_changed_between_epochs() -> None:
    class Epochs(Slow):
        def set_epoch(self, number: int) -> None:
            """Reaches no worker that lives on."""

    slow_start = LoadingTrial(workers=2, samples_per_s=1.0, startup_s=3.0)

    def persists(data: Slow, **loader: Any) -> bool:
        trials = LoaderTrials(slow_source(data, **loader), Cpu())
        trials._needed_per_s = 100.0  # an epoch of 4,000 samples takes 40 s
        return trials._persist(slow_start)

    assert persists(Slow(sample_s=0.0))
    assert not persists(Epochs(sample_s=0.0))
    assert not persists(Slow(sample_s=0.0), num_workers=1)
    assert persists(Slow(sample_s=0.0), num_workers=1, persistent_workers=True)


def test_an_outcome_without_a_passed_proof_is_left_as_it_is() -> None:
    outcome = Outcome(status=Status.OVER_BUDGET, reason="too much", measurement=proof(0.001))
    source = slow_source(Slow(sample_s=0.0))
    assert LoaderTrials(source, Cpu()).added(outcome, SIZE, 0.0, lambda: None) is outcome


def test_a_whole_search_leaves_no_trace_and_its_step_has_the_workers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 4))
    loader = DataLoader(Slow(samples=2200, sample_s=0.001), batch_size=SIZE, shuffle=True)
    before, handler = digest_of(model, None, loader), signal.getsignal(signal.SIGCHLD)
    fit = autofit.tune(
        model, loader, device="cpu", study=":memory:", progress=False, memory_budget="256MiB",
        strategies=["optimizer_implementation"], numerics="exact",
    )  # fmt: skip
    assert digest_of(model, None, loader) == before
    assert signal.getsignal(signal.SIGCHLD) is handler
    loading = fit.proof.loading
    assert loading is not None
    assert loading.workers > 0
    assert any(f"{loading.workers} worker process" in caveat for caveat in fit.caveats)
    with fit.prepare(model, loader, torch.optim.AdamW(model.parameters())) as step:
        assert step.loader.loader.num_workers == loading.workers
        assert loader.num_workers == 0
        step(next(iter(step.loader)))
