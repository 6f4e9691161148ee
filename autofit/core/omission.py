"""Omission: a combination that was never measured, with the reason."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from autofit.core.plan import Plan


class Basis(StrEnum):
    """Evidence behind a reason."""

    MEASURED = "measured"  # a plan that ran and failed
    ESTIMATED = "estimated"  # bounds on memory
    ASSUMED = "assumed"  # inferred from similar plans


class Omission(BaseModel):
    """The reason why no plan of a combination was measured.

    Attributes:
        plan: the plan of the combination that was closest to being run.
        basis: evidence behind the reason.
        reason: the reason, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    basis: Basis
    reason: str
