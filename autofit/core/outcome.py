"""Outcome: a Measurement, or why there is none."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, model_validator

from autofit.core.measurement import Measurement

DIED = "the process died while this plan ran"
"""Reason of a trial that was running when the process of the search itself ended."""


class Status(StrEnum):
    """What became of a plan. Only `MEASURED` can be recommended."""

    MEASURED = "measured"
    OVER_BUDGET = "over budget"  # ran, but its peak was above the memory budget
    OUT_OF_MEMORY = "out of memory"  # the device refused an allocation
    OUT_OF_HOST_MEMORY = "out of host memory"
    SHARED_MEMORY = "shared memory"  # /dev/shm or file handles: fewer workers, not a smaller batch
    LAUNCH_LIMIT = "launch limit"  # a kernel that this chip cannot run at this shape; memory is not short
    AMBIGUOUS = "ambiguous"  # a text that may or may not mean memory: once more in a fresh process
    POISONED = "poisoned"  # the device answers every call with an error
    TIMED_OUT = "timed out"
    CRASHED = "crashed"  # the process died
    WORKER_LOST = "loader worker lost"
    USER_ERROR = "user error"  # the user's own code failed
    DATA_ERROR = "data error"  # the dataset or collate function failed
    NUMERIC = "numeric"  # loss or gradient not finite
    NO_STEP = "no step"  # nothing was executed, so nothing was proven
    REJECTED = "rejected"  # a strategy or a gate refused the plan on this workload
    SKIPPED = "skipped"  # screened out before it ran
    INTERRUPTED = "interrupted"

    @property
    def does_not_fit(self) -> bool:
        """Whether a smaller micro batch is the cure."""
        return self in (Status.OUT_OF_MEMORY, Status.OVER_BUDGET, Status.OUT_OF_HOST_MEMORY)

    @property
    def inconclusive(self) -> bool:
        """Whether it says little by itself, because something else may be the cause: only two in a row count."""
        return self in (Status.CRASHED, Status.TIMED_OUT)

    @property
    def at_any_size(self) -> bool:
        """Whether the combination of the other knobs is at fault, so that no micro batch is the cure."""
        return self in (Status.USER_ERROR, Status.DATA_ERROR, Status.NUMERIC, Status.REJECTED, Status.NO_STEP)


class Outcome(BaseModel):
    """A Measurement, or why there is none.

    Attributes:
        status: what became of the plan.
        reason: one line for a person; never empty unless the status is `MEASURED`.
        measurement: present when `MEASURED`, and for `OVER_BUDGET` where the step did run.
        phase: where a failure happened: fetch, transfer, forward, backward, optimizer, prepare.
        traceback_text: the failing code's traceback, shortened to the user's frames.
        duration_s: seconds the attempt took, preparation and cleaning included.
        leaked: what the run left on the device, in words; empty when nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    phase: str | None = None
    traceback_text: str = ""
    duration_s: float = 0.0
    leaked: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Outcome":
        if self.status is Status.MEASURED and self.measurement is None:
            raise ValueError("an outcome 'measured' carries its measurement")
        if self.status is not Status.MEASURED and not self.reason:
            raise ValueError(f"an outcome {self.status.value!r} says why")
        return self

    @property
    def measured(self) -> bool:
        """Whether the plan ran inside the budget."""
        return self.status is Status.MEASURED
