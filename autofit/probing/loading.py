"""Measures how fast the user's loader makes batches, and chooses the fewest worker processes that keep up with a plan.

It follows the proof of a plan, whose step time it needs. Nothing runs if making batches in the training's process costs
next to nothing, or if worker processes cannot pay. Otherwise the loader is rebuilt with 1, 2, 4, ... workers and read
alone, without training steps, until it keeps up or more workers no longer help. The user's loader is never touched.

`worker_growth` reads a loader like the user's for a few seconds, and watches the memory of its workers.
"""

import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from autofit.core.loading import PREFETCH_FACTOR, Loading, LoadingTrial
from autofit.core.measurement import Measurement
from autofit.core.outcome import Outcome
from autofit.core.units import format_bytes, format_duration
from autofit.devices.base import Device
from autofit.devices.host_memory import available, kib_line
from autofit.failures.classify import classify
from autofit.failures.evidence import collect, named_error
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.torch_internals import handles_child_signal
from autofit.workloads.batches import BatchSource

TIME_SHARE, MOST_S = 0.1, 8.0
"""Limits on the time for all trials: the share of the time that is left, and the maximum number of seconds."""
FREE_RATIO = 0.02
"""Largest share of a step's time that making its batches may take in the training's process without being noticed: what
counts as a tie between plans."""
LEAST_BATCH_S, LEAST_PASS_S = 1e-3, 2.0
"""Shortest time to make one batch, and all batches of one pass, for which worker processes are tried. Handing a batch
over takes a worker a few tenths of a millisecond, and starting the workers for a pass some tenths of a second."""
MARGIN = 1.1
"""A loader with workers keeps up if it is this much faster than the steps, since its batches do not come evenly."""
GAIN = 1.05
"""Smallest gain for which more workers are used."""
REAPED_S = 1.0
"""Maximum wait for a worker that was shut down or terminated."""
WAVES, WINDOW_S = 3, 0.3
"""Length of a measurement: batches per worker, and seconds. Batches that were prepared ahead are not counted."""
GROWTH_S, STARTED_S, INTERVAL_S = 4.0, 0.7, 0.3
"""For the memory of workers: maximum number of seconds in all, seconds of warm-up after the first batch, and seconds
between two readings. A worker's memory settles within its first second."""
LEAST_INTERVALS, MOST_INTERVALS = 5, 8
"""Fewest and most intervals of which each must have added memory before that is called growth."""
EVEN = 0.3
"""Smallest growth in an interval, as a share of the mean. The memory of a healthy worker that cuts and resizes images
rises and falls by up to 11 MiB between two readings, but not evenly."""
LEAST_GROWTH_BYTES = 512 * 1024
"""Smallest growth per 1,000 samples that counts: a million samples then add 0.5 GiB. With a list of 200,000 annotations
beside small images, one worker grew by 1.6 MiB, and two by 2.8 MiB."""


def cores() -> int:
    """Returns the number of processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


@dataclass(slots=True)
class LoaderTrials:
    """Tries numbers of worker processes for one plan.

    Attributes:
        source: makes the loader with a number of workers.
        watch: stops a trial that takes too long.
        beat: called with "loading" before each trial.
        most: largest number of workers, by default that of the processors that this process may use.
    """

    source: BatchSource
    device: Device
    watch: Watchdog = field(default_factory=Watchdog)
    beat: Callable[[str], None] = lambda phase: None
    most: int = field(default_factory=cores)
    _size: int = 0
    _needed_per_s: float = 0.0
    _touched: bool = False
    _until_s: float = math.inf

    def added(self, outcome: Outcome, size: int, fastest_per_s: float, restore: Callable[[], None]) -> Outcome:
        """Returns the outcome of a proof with what was found, if the proof passed.

        `restore` puts back what reading the data may have changed. For the other arguments see `run`.
        """
        if outcome.measurement is None or not outcome.measured:
            return outcome
        try:
            found = self.run(outcome.measurement, size, fastest_per_s)
        finally:
            if self._touched:
                restore()
        return outcome.with_measured(loading=found)

    def run(self, proof: Measurement, size: int, fastest_per_s: float = 0.0) -> Loading | None:
        """Returns the settings of the loader, or why the user's are kept; None if there is nothing to change or tell.

        A loader that fails is a reason, not an error. `size` is the micro batch size of the proven plan,
        `fastest_per_s` the samples per second of its fastest run, since a proof may have been disturbed.
        """
        fetch_s, self._size, self._needed_per_s = proof.fetch_s, size, max(proof.samples_per_s, fastest_per_s)
        if not fetch_s:
            return None
        alone = LoadingTrial(workers=0, samples_per_s=proof.samples_per_step / fetch_s)
        if fetch_s <= FREE_RATIO * proof.samples_per_step / self._needed_per_s:
            idle = self._users("num_workers", 0) and not self.source.fixed_loading
            return Loading(needed_per_s=self._needed_per_s, trials=(alone,)) if idle else None
        if kept := self.source.fixed_loading or self._not_worth(alone):
            return self._kept([alone], kept)
        clock = self.watch.clock
        self._until_s = clock.elapsed_s + min(TIME_SHARE * clock.left_s, MOST_S)
        return self._chosen([alone, *self._trials(alone)])

    def _users(self, name: str, default: Any) -> Any:
        """Returns a setting of the user's loader."""
        return getattr(self.source.loader, name, None) or default

    def _kept(self, trials: Sequence[LoadingTrial], reason: str) -> Loading:
        workers = self._users("num_workers", 0)
        return Loading(needed_per_s=self._needed_per_s, trials=tuple(trials), kept=reason, workers=workers)

    def _not_worth(self, alone: LoadingTrial) -> str:
        """Returns why worker processes cannot pay, or ""."""
        rate = alone.samples_per_s or math.inf
        batch_s, length = self._size / rate, self.source.length
        if batch_s < LEAST_BATCH_S:
            return f"a batch is made in {format_duration(batch_s)}, about as long as a worker takes to hand it over"
        if length is not None and length / rate < LEAST_PASS_S:
            return f"one pass over the data loads in {format_duration(length / rate)}, too short for starting workers"
        return ""

    def _trials(self, alone: LoadingTrial) -> Iterator[LoadingTrial]:
        """Yields a trial with 1, 2, 4, ... workers, until one keeps up or fails, or more workers do not help."""
        best, per_worker = 0.0, 0
        for workers in [*(2**at for at in range((self.most - 1).bit_length())), self.most]:
            free, needed = available(), workers * per_worker
            if free is not None and needed > free:
                reason = f"{workers} workers would need {format_bytes(needed)} of {format_bytes(free)} free memory"
                yield LoadingTrial(workers=workers, reason=reason)
                return
            if self.watch.clock.elapsed_s >= self._until_s:
                yield LoadingTrial(workers=workers, reason="no time was left to try it")
                return
            trial = self._tried(workers)
            yield trial
            rate = trial.samples_per_s
            if rate is None or rate >= MARGIN * self._needed_per_s or rate < GAIN * best:
                return
            best, per_worker = rate, (trial.host_bytes or 0) // workers

    def _tried(self, workers: int) -> LoadingTrial:
        self.beat("loading")
        self._touched = True
        left_s = self._until_s - self.watch.clock.elapsed_s
        try:
            with _as_before():
                return self.watch.allowed(lambda: self._measured(workers, left_s), most_s=2 * left_s)
        except Overdue:
            reason = f"not measured within {format_duration(left_s)}"
        except Exception as error:  # noqa: BLE001  # the user's data set, in a worker or while it is sent to one
            reason = classify(collect(error, phase="fetch")).reason
        return LoadingTrial(workers=workers, reason=reason)

    def _measured(self, workers: int, left_s: float) -> LoadingTrial:
        """Reads batches from a loader with this many workers, as fast as it makes them."""
        changes = {"num_workers": workers, "prefetch_factor": self._prefetch, "timeout": left_s}
        changes |= {"persistent_workers": False, **({"pin_memory": True} if self.device.pins_memory else {})}
        loader = self.source.rebuild(self._size, changes=changes)
        first = workers * self._prefetch  # made while the workers start
        began = perf_counter()
        batches = iter(loader)
        arrivals: list[float] = []
        try:
            for _ in batches:
                arrivals.append(perf_counter() - began)
                enough = len(arrivals) >= first + WAVES * workers and arrivals[-1] - arrivals[first - 1] >= WINDOW_S
                if enough or arrivals[-1] > left_s:
                    break
            host_bytes = _private_bytes(batches)
        finally:
            _end(batches)
        counted = (len(arrivals) - first) // workers * workers
        if counted < workers:
            return LoadingTrial(workers=workers, reason=f"only {len(arrivals)} batches came, too few for its speed")
        seconds = arrivals[first - 1 + counted] - arrivals[first - 1]
        rate = counted * self._size / max(seconds, 1e-9)
        return LoadingTrial(workers=workers, samples_per_s=rate, startup_s=arrivals[0], host_bytes=host_bytes)

    @property
    def _prefetch(self) -> int:
        return int(self._users("prefetch_factor", PREFETCH_FACTOR))

    def _chosen(self, trials: Sequence[LoadingTrial]) -> Loading:
        """Returns the fewest workers that train as fast as any number, within `GAIN`."""
        loading = Loading(needed_per_s=self._needed_per_s, trials=tuple(trials))
        if not any(trial.workers and trial.samples_per_s for trial in trials):
            return self._kept(trials, f"with a worker process: {trials[-1].reason}")
        best = max(loading.training_per_s(trial) for trial in trials)
        found = next(trial for trial in trials if loading.training_per_s(trial) * GAIN >= best)
        if not found.workers:
            return loading
        changes: dict[str, object] = {"workers": found.workers, "prefetch_factor": self._prefetch}
        changes |= {"pin_memory": self.device.pins_memory or None, "persistent_workers": self._persist(found)}
        return loading.model_copy(update=changes)

    def _persist(self, trial: LoadingTrial) -> bool:
        """Returns whether workers live on after an epoch: as the user has it, or if starting them again would be felt.

        A data set with a method `set_epoch` is changed between epochs, which workers that live on would not see.
        """
        if self._users("num_workers", 0):
            return bool(self._users("persistent_workers", False))
        epoch_s = math.inf if self.source.length is None else self.source.length / self._needed_per_s
        return trial.startup_s > FREE_RATIO * epoch_s and not hasattr(self._users("dataset", None), "set_epoch")


@dataclass(frozen=True, slots=True)
class WorkerGrowth:
    """The memory that the workers of a loader share with no other process, while they make batches.

    Attributes:
        workers: number of workers.
        samples_per_step: number of samples of a step of the training.
        levels: number of samples made so far, and bytes of all workers, at moments when no batch was half made.
    """

    workers: int
    samples_per_step: int
    levels: tuple[tuple[int, int], ...]

    @property
    def bytes_per_sample(self) -> float:
        """Bytes by which the workers grow per sample; 0 if they do not grow in each interval, or by next to nothing."""
        steps = [(samples - before, now - level) for (before, level), (samples, now) in pairwise(self.levels)]
        samples, grown = sum(count for count, _ in steps), sum(added for _, added in steps)
        if len(steps) < LEAST_INTERVALS or not samples:
            return 0.0
        evenly = all(added / max(count, 1) >= EVEN * grown / samples for count, added in steps)
        return grown / samples if evenly and 1000 * grown >= LEAST_GROWTH_BYTES * samples else 0.0


def worker_growth(source: BatchSource, samples_per_step: int) -> WorkerGrowth | str:
    """Returns the memory of the workers of a loader like the user's while it is read; why not, if it cannot be seen.

    The samplers and generators of the user's loader are used, so that the caller must put them back.
    """
    workers = getattr(source.loader, "num_workers", 0)
    if not workers:
        return "the loader has no worker processes"
    if source.fixed_loading:
        return f"no loader like the user's can be made to read from: {source.fixed_loading}"
    if kib_line(Path("/proc/self/smaps_rollup"), "Private_Dirty") is None:
        return "the memory of other processes cannot be read on this machine"
    size, began = source.user_batch_size, perf_counter()
    try:
        with _as_before():
            loader = source.rebuild(size, changes={"timeout": GROWTH_S, "pin_memory": False})
            levels, ended = _levels(loader, size, began + GROWTH_S)
    except Exception as error:  # noqa: BLE001  # the user's data set, in a worker or while it is sent to one
        return f"reading from a loader like the user's failed: {named_error(error)}"
    if len(levels) <= LEAST_INTERVALS:
        few = f"the workers make too few batches in {format_duration(GROWTH_S)} to see whether they grow"
        return (
            "a pass over the data, with which the workers end, is too short to see whether they grow" if ended else few
        )
    return WorkerGrowth(workers, samples_per_step, tuple(levels))


def _levels(loader: Iterable[object], size: int, until_s: float) -> tuple[list[tuple[int, int]], bool]:
    """Reads a loader and returns the number of samples, and the bytes of its workers, from time to time.

    Workers that live on after a pass are watched in the next one too. Others end with it, and what they hold with them:
    then the second result is true.
    """
    levels, ended = list[tuple[int, int]](), False
    made, next_s, batches = 0, 0.0, iter(loader)
    try:
        while len(levels) <= MOST_INTERVALS and perf_counter() < until_s and not ended:
            if next(batches, None) is None:
                ended = not getattr(loader, "persistent_workers", False)
                batches = batches if ended else iter(loader)
                continue
            made += size
            next_s = next_s or perf_counter() + STARTED_S
            if perf_counter() >= next_s:
                _finish(batches, until_s)
                levels.append((made, _private_bytes(batches, "Private_Dirty") or 0))
                next_s = perf_counter() + INTERVAL_S
    finally:
        _end(batches)
    return levels, ended


def _finish(batches: object, until_s: float) -> None:
    """Waits until the workers have made all batches that were requested of them."""
    ready: Any = getattr(batches, "_data_queue", None)
    while ready is not None and ready.qsize() < getattr(batches, "_tasks_outstanding", 0) and perf_counter() < until_s:
        sleep(0.002)


def _private_bytes(batches: object, *keys: str) -> int | None:
    """Returns the main memory that the workers of a running loader share with no other process; None if unknown.

    `keys` are the kinds of it that count: all by default. The pages of a file that is mapped into memory are clean, and
    the system takes them back when it needs them.
    """
    workers = getattr(batches, "_workers", ())
    files = [Path(f"/proc/{worker.pid}/smaps_rollup") for worker in workers]
    found = [kib_line(file, key) for file in files for key in keys or ("Private_Clean", "Private_Dirty")]
    known = [size for size in found if size is not None]
    return sum(known) if known else None


def _end(batches: object) -> None:
    """Ends the workers of a running loader now, instead of when it is garbage."""
    shut_down = getattr(batches, "_shutdown_workers", None)
    if callable(shut_down):
        shut_down()
    for worker in getattr(batches, "_workers", ()):
        worker.join(REAPED_S)  # torch 2.11 leaves those that it had to terminate as zombies


@contextmanager
def _as_before() -> Iterator[None]:
    """Takes off the handler that torch installs with the first workers of a process, and mutes warnings of forking."""
    was_set = handles_child_signal()
    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if handles_child_signal() and not was_set and before is not None:
            signal.signal(signal.SIGCHLD, before)
            handles_child_signal(False)
