"""Loading: how fast the user's loader makes batches, and the fewest worker processes with which it keeps up."""

from pydantic import Field

from autofit.core.strict import Strict

PREFETCH_FACTOR = 2
"""Number of batches that a worker process prepares ahead, unless the user's loader has another: torch's default."""


class LoadingTrial(Strict):
    """How fast the loader was with a number of worker processes.

    Attributes:
        workers: number of worker processes; 0 makes batches in the training's process, between its steps.
        samples_per_s: samples per second of the loader alone; None if it was not measured.
        startup_s: seconds from the start of the workers to the first batch.
        host_bytes: main memory that the workers do not share with the training; None if it is unknown.
        reason: why there is no measurement, or "".
    """

    workers: int = Field(ge=0)
    samples_per_s: float | None = Field(default=None, gt=0)
    startup_s: float = 0.0
    host_bytes: int | None = None
    reason: str = ""


class Loading(Strict):
    """The settings with which the loader keeps up with the steps of a plan, chosen after the plan.

    Attributes:
        needed_per_s: samples per second that the steps of the plan could take.
        trials: the numbers of workers that were tried, ascending.
        kept: why the loader keeps the user's settings; "" if they were chosen here. The further attributes then count.
        workers: number of worker processes.
        prefetch_factor: batches that each worker prepares ahead; None without workers.
        pin_memory: whether batches are copied into page-locked memory; None keeps the user's setting.
        persistent_workers: whether the workers live on after an epoch.
    """

    needed_per_s: float = Field(gt=0)
    trials: tuple[LoadingTrial, ...] = Field(min_length=1)
    kept: str = ""
    workers: int = Field(default=0, ge=0)
    prefetch_factor: int | None = Field(default=None, ge=1)
    pin_memory: bool | None = None
    persistent_workers: bool = False

    @property
    def arguments(self) -> dict[str, int | bool | None]:
        """The arguments of a DataLoader with these settings; a None takes the user's away."""
        pinned = {} if self.pin_memory is None else {"pin_memory": self.pin_memory}
        lasting = {"persistent_workers": self.persistent_workers, "prefetch_factor": self.prefetch_factor}
        return {"num_workers": self.workers, **pinned, **lasting}

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of the loader alone with these settings; None if unknown."""
        return next((trial.samples_per_s for trial in self.trials if trial.workers == self.workers), None)

    def training_per_s(self, trial: LoadingTrial) -> float:
        """Returns the samples per second of a training with this loader. Without workers, steps wait for batches."""
        rate = trial.samples_per_s or 0.0
        if trial.workers or not rate:
            return min(rate, self.needed_per_s)
        return 1 / (1 / rate + 1 / self.needed_per_s)
