"""Opening: the workload of a job on its device, in a child process. This process never loads the user's code."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager
from pathlib import Path

from autofit import locks
from autofit.core.budget import Clock
from autofit.nightly.job import Job
from autofit.probing.remote.bench import RemoteBench
from autofit.probing.watchdog import Watchdog
from autofit.search.bench import Bench
from autofit.trackers.progress import waiting

Say = Callable[[str], None]
"""Receives one line for people."""
OpenBench = Callable[[Job, Clock, Say, Path], AbstractContextManager[Bench]]
"""Opens a bench: the job, the clock of its time, what receives lines for people, and the folder of the jobs file."""


@contextmanager
def opened(job: Job, clock: Clock, say: Say, folder: Path) -> Iterator[Bench]:
    """Opens the workload of a job in a child process, whose working directory is the folder of the jobs file.

    The device is locked until the context ends.

    Args:
        job: the job.
        clock: the time left.
        say: receives a line while this waits for the device, and if the child gives no sign of life.
        folder: folder of the jobs file.

    Raises:
        Busy: another tuner holds the device for half of the time left.
        DeviceMissing: the device is not on this machine.
        AutofitError: as in `RemoteBench`.
    """
    with chdir(folder), ExitStack() as held:
        watch = held.enter_context(Watchdog(clock, say))

        def patience_s() -> float:
            return locks.patience_s(None if clock.limit_s is None else max(clock.left_s, 0.0))

        claim = locks.claiming(held, patience_s, waiting(watch, lambda event: say(event.text)))
        yield held.enter_context(
            RemoteBench(job.target, beat=watch.beat, claim=claim, clock=clock, log=_log(job, folder))
        )


def _log(job: Job, folder: Path) -> Path:
    """Returns the log file for the output of the user's code."""
    return folder / ".autofit" / f"{job.name}.log"
