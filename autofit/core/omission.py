"""Omission: a combination of knob values of which no plan was measured, and why."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from autofit.core.plan import Plan


class Basis(StrEnum):
    """What a reason rests on."""

    MEASURED = "measured"  # a plan that ran and failed
    PREDICTED = "predicted"  # bounds on memory
    ASSUMED = "assumed"  # what is believed from plans that have something in common with it


class Omission(BaseModel):
    """Why no plan of a combination was measured.

    Attributes:
        plan: the plan of the combination that came closest to being run.
        basis: what the reason rests on.
        reason: in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    basis: Basis
    reason: str
