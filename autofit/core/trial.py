"""Trial: the record of one run of a plan. Purpose: why a plan is run."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan


class Purpose(StrEnum):
    """Why a plan is run."""

    PROBE = "probe"  # does it fit, and roughly how fast is it
    BLOCK = "block"  # one block of a race: timing only
    PROOF = "proof"  # at least 3 whole steps on the worst batch, inside the budget, as returned


class Trial(BaseModel):
    """The durable record of one run of one plan.

    Attributes:
        number: position in the study, from 0.
        earlier: whether the trial was made by an earlier run of the same study.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    plan: Plan
    outcome: Outcome
    purpose: Purpose = Purpose.PROBE
    earlier: bool = False
