"""Outcome: a Measurement, or the reason there is none."""

from enum import StrEnum

from pydantic import model_validator

from autofit.core.measurement import Measurement
from autofit.core.strict import Elapsed, Strict

DIED, COMPILING = "the process died while this plan ran", "compiling"
"""Reason of a trial that ran when the process of the search ended; phase in which a plan took too long to compile."""
IN_TRAINING = "a training with this plan ran out of memory"
"""Beginning of the reason of a plan that failed in a training, which is stronger evidence than a probe that it fits."""
LAST_BATCH = "last batch"
"""Phase in which a plan failed on the incomplete last batch of an epoch."""
SURVEY = "survey"
"""Phase in which a child determines the search space. A child that is given the space skips it."""
CONTRACT = "contract"
"""Phase of a failure in which the user's function returned what autofit cannot train on, whatever the plan."""


class Status(StrEnum):
    """How the run of a plan ended. Only a `MEASURED` plan can be recommended."""

    MEASURED = "measured"
    OVER_BUDGET = "over budget"  # ran, but its peak was above the memory budget
    OUT_OF_MEMORY = "out of memory"  # the device refused an allocation
    OUT_OF_HOST_MEMORY = "out of host memory"
    SHARED_MEMORY = "shared memory"  # /dev/shm or file handles: fewer workers, not a smaller batch
    LAUNCH_LIMIT = "launch limit"  # a kernel that this chip cannot run at this shape; not a lack of memory
    AMBIGUOUS = "ambiguous"  # may or may not be a lack of memory; retried once in a fresh process
    POISONED = "poisoned"  # every call to the device fails
    TIMED_OUT = "timed out"
    CRASHED = "crashed"  # the process died
    WORKER_LOST = "loader worker lost"
    USER_ERROR = "user error"  # the user's code failed
    DATA_ERROR = "data error"  # the dataset or collate function failed
    NUMERIC = "numeric"  # loss or gradient not finite, or wrong
    NOT_COMPILED = "not compiled"  # torch.compile failed, or took longer than allowed
    NO_STEP = "no step"  # nothing was executed, so nothing was proven
    REJECTED = "rejected"  # a strategy or a gate refused the plan on this workload
    SKIPPED = "skipped"  # screened out before it ran
    INTERRUPTED = "interrupted"

    @property
    def does_not_fit(self) -> bool:
        """Whether a smaller micro batch size may help."""
        return self in (Status.OUT_OF_MEMORY, Status.OVER_BUDGET, Status.OUT_OF_HOST_MEMORY)

    @property
    def inconclusive(self) -> bool:
        """Whether something other than the plan may be the cause, so that one such outcome is not conclusive."""
        return self in (Status.CRASHED, Status.TIMED_OUT)

    @property
    def at_any_size(self) -> bool:
        """Whether the combination of the other knobs is at fault, so that no micro batch size helps.

        Or the micro batch itself, if the user's code admits no other sizes (`of_users_code`).
        """
        return self.of_users_code or self in (Status.NUMERIC, Status.NO_STEP, Status.NOT_COMPILED, Status.REJECTED)

    @property
    def of_users_code(self) -> bool:
        """Whether the user's own code failed."""
        return self in (Status.USER_ERROR, Status.DATA_ERROR)


class Outcome(Strict):
    """A Measurement, or the reason there is none.

    Attributes:
        status: how the run of the plan ended.
        reason: the reason, in one line; empty only if the status is `MEASURED`.
        measurement: present if the status is `MEASURED`, or `OVER_BUDGET` after steps that did run.
        phase: phase in which a failure happened: fetch, transfer, forward, backward, optimizer, prepare, or
            one of `COMPILING`, `LAST_BATCH`, `CONTRACT`.
        traceback_text: the failing code's traceback, shortened to the user's frames.
        duration_s: duration of the attempt in seconds, with preparation and cleanup.
        leaked: description of the memory that the run left on the device; "" if none.
    """

    status: Status
    reason: str = ""
    measurement: Measurement | None = None
    phase: str | None = None
    traceback_text: str = ""
    duration_s: Elapsed = 0.0
    leaked: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Outcome":
        if self.status is Status.MEASURED and self.measurement is None:
            raise ValueError("an outcome 'measured' needs a measurement")
        if self.status is not Status.MEASURED and not self.reason:
            raise ValueError(f"an outcome {self.status.value!r} needs a reason")
        return self

    @property
    def measured(self) -> bool:
        """Whether the plan ran inside the budget."""
        return self.status is Status.MEASURED

    def with_measured(self, **changes: object) -> "Outcome":
        """Returns the outcome with changes of its measurement; unchanged if it has none."""
        if self.measurement is None:
            return self
        return self.model_copy(update={"measurement": self.measurement.model_copy(update=changes)})
