"""Trial: the record of one run of a plan. Purpose and RunTerms: why and on which terms a plan is run."""

from enum import StrEnum

from pydantic import Field

from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.strict import Strict


class Purpose(StrEnum):
    """Why a plan is run."""

    PROBE = "probe"  # does it fit, and roughly how fast is it
    BLOCK = "block"  # one block of a race: timing only
    PROOF = "proof"  # at least 3 whole steps on the worst batch, inside the budget, as returned


class Trial(Strict):
    """The durable record of one run of one plan.

    Attributes:
        number: position in the study, from 0.
        earlier: whether the trial was made by an earlier run of the same study.
    """

    number: int
    plan: Plan
    outcome: Outcome
    purpose: Purpose = Purpose.PROBE
    earlier: bool = False


SLOW_S = 1.0
"""Duration from which a step is slow: a run then makes as few steps as a measurement allows."""
STEPS, SLOW_STEPS = 8, 4
"""Number of steps that a probe makes, warm-up and worst batch included, and that of one with slow steps."""


class RunTerms(Strict):
    """The terms of one run.

    Attributes:
        limit_s: maximum duration in seconds; None for what the time budget leaves.
        objective: gives the score of the probe.
        above: score above which a probe continues to its proof in the same run: whole steps on the worst batch, without
            clearing the cache. 0: its first steps are those of a proof. None: it never does.
        fit_alone: whether only steps on the worst batch run, which show whether the plan fits.
    """

    limit_s: float | None = Field(default=None, gt=0)
    objective: Objective = Objective()
    above: float | None = Field(default=None, ge=0)
    fit_alone: bool = False

    @property
    def at_once(self) -> bool:
        """Whether the first steps of a probe are those of a proof."""
        return self.above == 0.0

    def beaten_by(self, measurement: Measurement) -> bool:
        """Returns whether a probe with this measurement continues to its proof."""
        return self.above is not None and self.objective.score(measurement) > self.above


OPEN = RunTerms()
"""The terms of a run that may take what the time budget leaves, and never continues to a proof."""
