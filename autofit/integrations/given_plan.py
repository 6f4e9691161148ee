"""Reads a plan in the forms in which a user has one."""

from pathlib import Path
from typing import TypeAlias

from autofit import planfile
from autofit.core.errors import UsageError
from autofit.core.recommendation import Recommendation
from autofit.core.wording import a_type
from autofit.fit import Fit

GivenPlan: TypeAlias = str | Path | Recommendation | Fit
"""A plan file, a recommendation, or what `autofit.tune` or `autofit.load` returned."""


def fit_of(plan: GivenPlan) -> Fit:
    """Returns the plan as `autofit.load` does.

    Raises:
        PlanFileError, UsageError: as in `recommendation_of`.
    """
    if isinstance(plan, Fit):
        return plan
    return Fit(plan) if isinstance(plan, Recommendation) else Fit(recommendation_of(plan), plan_file=str(plan))


def recommendation_of(plan: GivenPlan) -> Recommendation:
    """Returns the recommendation of a plan file or a fit.

    Raises:
        PlanFileError: the file is missing, damaged, or of another schema.
        UsageError: `plan` is something else.
    """
    if isinstance(plan, Recommendation):
        return plan
    if isinstance(plan, Fit):
        return plan.recommendation
    if isinstance(plan, str | Path):
        return planfile.load(plan)
    raise UsageError(
        f"found {a_type(plan)} as plan; expected the path of a plan file, or what autofit.tune or "
        "autofit.load returned. Pass one of these."
    )
