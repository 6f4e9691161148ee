"""Answer: the chosen plan with its proof, the baseline, the alternatives and the caveats."""

import math
from typing import Literal, Self

from pydantic import ConfigDict, Field

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import Refusal, StrategyRecord
from autofit.core.statistics import DEVIATIONS_95, expected_gain
from autofit.core.strict import Elapsed, Positive, Strict
from autofit.core.units import format_ratio

PLAN_SCHEMA = "autofit.plan/1"


class Ratio(Strict):
    """A throughput ratio with its 95 % interval.

    Attributes:
        value: median of the paired ratios.
        low: lower end of the interval.
        high: upper end of the interval.
        pairs: number of measured pairs of blocks; 0 for the ratio of two separate probes.
    """

    value: Positive
    low: Positive
    high: Positive
    pairs: int = 0

    @property
    def expected_gain(self) -> float:
        """Expected loss in (normally distributed) log throughput if the second plan replaces the first; a gain is 0."""
        return expected_gain(math.log(self.value), math.log(self.high / self.low) / (2 * DEVIATIONS_95))

    def widened(self, times: float) -> Self:
        """Returns the ratio with its interval `times` as wide, on a logarithmic scale."""
        low, high = (self.value * (end / self.value) ** times for end in (self.low, self.high))
        return self.model_copy(update={"low": low, "high": high})

    def __str__(self) -> str:
        return f"{format_ratio(self.value)} ({format_ratio(self.low, sign='')} to {format_ratio(self.high, sign='')})"


class Candidate(Strict):
    """A plan that was measured or tried, with its outcome.

    Attributes:
        plan: the plan.
        outcome: the outcome of its latest probe.
        gain: throughput relative to the baseline; from paired blocks if the two raced.
        rate_per_s: throughput in the objective's unit, on one scale for all plans of this search: from the race if the
            plan raced, otherwise from its probe. None if unknown.
        over_recommended: throughput relative to the recommended plan, by paired blocks if both raced. Not the baseline.
        note: why it was not chosen, or "".
        on_front: whether no measured plan is as fast with less memory (`autofit.search.choice`).
    """

    plan: Plan
    outcome: Outcome
    gain: Ratio | None = None
    rate_per_s: Positive | None = None
    over_recommended: Ratio | None = None
    note: str = ""
    on_front: bool = False


class Answer(Strict):
    """The chosen plan with its proof. Written to the plan file, read back by `autofit.load`.

    Attributes:
        schema_name: the record's schema and version.
        plan: the recommended plan, exactly as it was run.
        proof: the measurement of that run: whole steps on the worst batch, inside the budget.
        estimate: estimate of the plan's peak before it first ran; None if there was none.
        baseline: the user's plan, with its outcome.
        gain: throughput of `plan` relative to the baseline. None if the baseline does not run, or if the two did not
            race and the proof contradicts the probe.
        rate_per_s: throughput of `plan`, on the same scale as `Candidate.rate_per_s`.
        alternatives: other measured plans, best first. `plan`, the alternatives that are `on_front`, and the baseline
            if it is `on_front`, are the Pareto front of throughput against memory.
        strategies: what the strategies do whose values differ between `plan` and the baseline.
        untried: why only the baseline could be measured, and what would help, without a full stop; "" if another was.
        long_proof: what a run of minutes has shown, see `autofit.tune(prove=...)`; "" if there was none.
        caveats: notes to read before using the plan, the most important first.
        refused: strategies and knob values left out of the search, with the reason.
        budget: the limits of the search.
        objective: what was maximised.
        environment: the environment in which the plan was measured.
        stopped: what ended the search.
        study: where the trials are stored, without passwords.
        title: what was tuned, such as "train.py:make_workload"; "" if unknown.
        command: the command or call that started the search, without secrets; "" if unknown.
        counts: number of trials by status.
        duration_s: duration of the search in seconds.
        created: UTC time in ISO 8601.
        evaluation: the plan for evaluation between epochs of this training, from a search of its own in inference mode;
            None without an `eval_loader`, or if no plan was found.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_name: Literal["autofit.plan/1"] = Field(default="autofit.plan/1", alias="schema")
    plan: Plan
    proof: Measurement
    estimate: Estimate | None = None
    baseline: Candidate
    gain: Ratio | None = None
    rate_per_s: Positive | None = None
    alternatives: tuple[Candidate, ...] = ()
    strategies: tuple[StrategyRecord, ...] = ()
    untried: str = ""
    long_proof: str = ""
    caveats: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    budget: Budget
    objective: Objective
    environment: Environment
    stopped: str = ""
    study: str = ""
    title: str = ""
    command: str = ""
    counts: dict[str, int] = {}
    duration_s: Elapsed = 0.0
    created: str = ""
    evaluation: "Answer | None" = None

    def global_batch(self, plan: Plan) -> int:
        """Returns the samples per optimizer step of all ranks under a plan."""
        return self.environment.ranks * plan.global_batch_size
