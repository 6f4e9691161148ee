"""Reads a plan in the forms in which a user has one."""

from pathlib import Path
from typing import TypeAlias

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.errors import UsageError
from autofit.core.wording import a_type
from autofit.fit import Fit

GivenPlan: TypeAlias = str | Path | Answer | Fit
"""A plan file, an answer, or what `autofit.tune` or `autofit.load` returned."""


def fit_of(plan: GivenPlan) -> Fit:
    """Returns the plan as `autofit.load` does.

    Raises:
        PlanFileError, UsageError: as in `answer_of`.
    """
    if isinstance(plan, Fit):
        return plan
    return Fit(plan) if isinstance(plan, Answer) else Fit(answer_of(plan), plan_file=str(plan))


def answer_of(plan: GivenPlan) -> Answer:
    """Returns the answer of a plan file or a fit.

    Raises:
        PlanFileError: the file is missing, damaged, or of another schema.
        UsageError: `plan` is something else.
    """
    if isinstance(plan, Answer):
        return plan
    if isinstance(plan, Fit):
        return plan.answer
    if isinstance(plan, str | Path):
        return planfile.load(plan)
    raise UsageError(
        f"found {a_type(plan)} as plan; expected the path of a plan file, or what autofit.tune or "
        "autofit.load returned. Pass one of these."
    )
