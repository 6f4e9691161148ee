"""Recommendation: the chosen plan with its proof, the baseline, the alternatives and the caveats."""

import math
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.statistics import DEVIATIONS_95, expected_gain

PLAN_SCHEMA = "autofit.plan/1"


class Ratio(BaseModel):
    """A throughput ratio with its interval.

    Attributes:
        value: median of the paired ratios.
        low: lower end of the 95 % interval.
        high: upper end.
        pairs: how many pairs of blocks it rests on; 0 when it is the quotient of two separate probes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    low: float
    high: float
    pairs: int = 0

    @property
    def expected_gain(self) -> float:
        """Mean log throughput that the first plan wins over the second, counted as nothing where it loses.

        That is what is lost on average by taking the second, for the first may be faster. The logarithm of the ratio is
        taken to be normal.
        """
        return expected_gain(math.log(self.value), math.log(self.high / self.low) / (2 * DEVIATIONS_95))

    def widened(self, times: float) -> Self:
        """Returns the ratio with an interval so many times as wide, as a logarithm."""
        low, high = (self.value * (end / self.value) ** times for end in (self.low, self.high))
        return self.model_copy(update={"low": low, "high": high})

    def __str__(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"


class Candidate(BaseModel):
    """A plan with what is known of it.

    Attributes:
        plan: the plan.
        outcome: its latest probe.
        gain: throughput over the user's own setting, paired where the two raced.
        rate_per_s: throughput in the objective's unit, on one scale with all others of this search: as the race has it,
            and else the probes. None where that is not known.
        note: why it was not chosen, or "".
        on_front: whether no measured plan is as fast with less memory, see `autofit.search.pareto`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    outcome: Outcome
    gain: Ratio | None = None
    rate_per_s: float | None = None
    note: str = ""
    on_front: bool = False


class Recommendation(BaseModel):
    """The chosen plan with its proof. Written to the plan file, read back by `autofit.load`.

    Attributes:
        schema_name: the record's schema and version.
        plan: the recommended plan; it was run as it stands here.
        proof: the measurement of that run: whole steps on the worst batch, inside the budget.
        predicted: what was thought of the plan's peak before it first ran; None where nothing was.
        baseline: the user's own setting and what became of it.
        gain: throughput of `plan` over the baseline, or None when the baseline does not run.
        rate_per_s: of `plan`, as that of a `Candidate`.
        alternatives: other plans that were measured, best first. Those that are `on_front` and `plan` are the Pareto
            front of throughput against memory, and so is the baseline where it says so.
        untried: why nothing else than the user's own setting could be measured, and what would help, as a sentence
            without its full stop; "" where something was.
        caveats: what a person should know before using the plan.
        refused: strategies and knob values left out of the search, with the reason.
        budget: the limits that were kept.
        objective: what was maximised.
        environment: where it was measured.
        study: where the trials are kept, secrets removed.
        counts: number of trials by status.
        duration_s: seconds that the search took.
        created: UTC time in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_name: Literal["autofit.plan/1"] = Field("autofit.plan/1", alias="schema")
    plan: Plan
    proof: Measurement
    predicted: Estimate | None = None
    baseline: Candidate
    gain: Ratio | None = None
    rate_per_s: float | None = None
    alternatives: tuple[Candidate, ...] = ()
    untried: str = ""
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    budget: Budget
    objective: Objective
    environment: Environment
    study: str = ""
    counts: dict[str, int] = {}
    duration_s: float = 0.0
    created: str = ""
