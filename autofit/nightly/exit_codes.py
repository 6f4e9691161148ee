"""Exit codes: that of a record, and the worst of a night."""

from collections.abc import Iterable
from typing import Literal

from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    Busy,
    DevicePoisoned,
    NothingFits,
    UsageError,
    UserCodeError,
)
from autofit.nightly.records import NightRecord, VerdictKind

FailOn = Literal["regression", "change", "never"]
"""Which verdicts set the exit code. Errors set it in any case."""
REGRESSION = 4
INTERRUPTED = 130
WORST_FIRST = (
    INTERRUPTED,
    AutofitError.exit_code,
    UsageError.exit_code,
    UserCodeError.exit_code,
    DevicePoisoned.exit_code,
    NothingFits.exit_code,
    REGRESSION,
    Busy.exit_code,
    BudgetSpent.exit_code,
    0,
)
"""Exit codes, the worst first. A job that could not be checked may hide a regression, so it is worse than one; a job
that was only skipped is not."""


def worst(codes: Iterable[int]) -> int:
    """Returns the worst of several exit codes; 0 for none."""
    return min(codes, key=WORST_FIRST.index, default=0)


def code_of(record: NightRecord, fail_on: FailOn) -> int:
    """Returns the exit code of a job that was checked.

    A plan that does not run counts as a regression, unless another plan replaced it in this night: a mere proposal
    does not help the trainings that use the accepted plan. The error of a job that could not be opened does not count
    here: it has an exit code of its own.
    """
    kind = record.verdict.kind
    fails = kind in (VerdictKind.DOES_NOT_FIT, VerdictKind.ERROR) and record.segment is not None
    lost = kind is VerdictKind.REGRESSION or (fails and not record.replaced)
    changed = lost or kind is VerdictKind.FASTER or bool(record.verdict.changed) or record.proposed is not None
    return REGRESSION if (fail_on == "regression" and lost) or (fail_on == "change" and changed) else 0
