"""Every error that autofit raises on purpose, in one tree.

AutofitError                 1   something inside autofit is broken
├── UsageError               2   an argument, a file or a workload that cannot be used as given
│   ├── DeviceMissing        2   a device that is not on this machine
│   ├── WorkloadError        2   the model, loader, loss or optimizer cannot be tuned as given
│   ├── SpaceError           2   no plan satisfies the request (unknown strategy, no divisor)
│   ├── PlanFileError        2   a plan file that is damaged, of another schema, or of another model
│   ├── StudyError           2   a study that cannot be opened, written or compared
│   │   └── StorageError     2   a storage that does not answer, or refuses to be written
│   ├── ClockError           2   a clock that goes backwards or returns NaN
│   └── Untraceable          2   a workload whose memory cannot be traced; a search probes it instead
├── NothingFits              3   no plan runs inside the memory budget
├── UserCodeError            5   the user's code failed; its error is shown
│   └── NonFiniteLoss        5   the loss of the baseline is not finite
├── Busy                     6   another tuner uses the device or the study
├── BudgetSpent              7   the time budget ended before a plan was measured, or proven
├── DevicePoisoned           8   every call to the device fails; only a new process helps
├── RanksLost                8   ranks that train together no longer answer each other, or never met
└── RestoreError             1   an object the user passed in could not be restored bit-identically

The number is the exit code of the command line. An expected event of a probe, such as an out-of-memory, is an `Outcome`
and not an error. A message says what was found, what was expected, and what to do next.
"""

from collections.abc import Mapping
from typing import ClassVar


class AutofitError(Exception):
    """Base class of every error that autofit raises on purpose.

    Attributes:
        exit_code: exit code of the command line if this error ends it.
    """

    exit_code: ClassVar[int] = 1


class UsageError(AutofitError):
    """An argument, a file or a workload cannot be used as given."""

    exit_code = 2


class DeviceMissing(UsageError):
    """A device that is not on this machine. A night skips its jobs."""


class WorkloadError(UsageError):
    """The model, loader, loss or optimizer cannot be tuned as given."""


class SpaceError(UsageError):
    """No plan satisfies the request: for example an unknown strategy, or no divisor of the global batch size."""


class PlanFileError(UsageError):
    """A plan file that is damaged, of another schema, or made for another model."""


class StudyError(UsageError):
    """A study that cannot be opened, written or compared."""


class StorageError(StudyError):
    """A storage that does not answer, or refuses to be written."""


class ClockError(UsageError):
    """A clock that goes backwards or returns NaN, so that nothing can be timed."""


class Untraceable(UsageError):
    """A workload whose memory cannot be traced.

    Attributes:
        reason: why the trace stopped, such as the name of an operator.
        where: the line of the user's code that caused it, or the operation in progress.
    """

    def __init__(self, reason: str, where: str, advice: str = "") -> None:
        """The `advice` is complete sentences on what is still known and what to do next."""
        super().__init__(f"this workload's memory cannot be traced: {reason} ({where}). {advice}".rstrip())
        self.reason, self.where = reason, where


class NothingFits(AutofitError):
    """No plan runs inside the memory budget."""

    exit_code = 3


class UserCodeError(AutofitError):
    """The user's code failed.

    Attributes:
        traceback_text: the user's traceback as text, or "" if there is none.
    """

    exit_code = 5

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class NonFiniteLoss(UserCodeError):
    """The loss of the baseline is not finite."""


class Busy(AutofitError):
    """Another tuner uses the device or the study."""

    exit_code = 6


class BudgetSpent(AutofitError):
    """The time budget ended before a plan was measured, or before one was proven."""

    exit_code = 7


class DevicePoisoned(AutofitError):
    """Every call to the device fails. Only a new process helps."""

    exit_code = 8


class RanksLost(AutofitError):
    """Ranks that train together no longer answer each other, or never met."""

    exit_code = 8


class RestoreError(AutofitError):
    """An object the user passed in could not be restored bit-identically."""


def to_record(error: AutofitError) -> dict[str, str]:
    """Returns an error as texts, for another process."""
    text = error.traceback_text if isinstance(error, UserCodeError) else ""
    return {"type": type(error).__name__, "message": str(error), "traceback": text}


def from_record(record: Mapping[str, object]) -> AutofitError:
    """Returns the error of another process. One of an unknown type is an `AutofitError`."""
    kind = globals().get(str(record.get("type")))
    if not (isinstance(kind, type) and issubclass(kind, AutofitError)):
        kind = AutofitError
    if issubclass(kind, Untraceable):  # whose message is made of parts
        kind = UsageError
    message = str(record.get("message") or "another process failed and gave no reason")
    text = str(record.get("traceback", ""))
    return kind(message, text) if issubclass(kind, UserCodeError) else kind(message)
