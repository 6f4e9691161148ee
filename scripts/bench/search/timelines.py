"""Timelines: what each action of a search cost on a device; recorded in a real search, or generated.

A recorded timeline has the costs of one search and the plans that ran in it. The figures of all plans follow from
these. A step takes, for each micro batch, a fixed time and a time per sample; the peak is a constant and a size per
sample. The times and sizes per sample have one factor for each value of a knob. All are fitted to the plans that ran,
from what the knobs expect (`Knob.expected`, `Knob.growth`).
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from autofit.core.briefing import Briefing
from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.feasibility.plan_features import Array
from scripts.bench.search.large_spaces import LARGE

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "data" / "timelines"
LARGE_SD, SMALL_SD, TOGETHER, LAUNCH_SD = 0.7, 0.05, 0.95, 1.5
"""Standard deviation, as a log ratio, of the factor of a value around what its knob expects: of a knob that may change
much (`Knob.ceiling`), and of any other; correlation between the values of a knob; and the standard deviation of the
fixed time of a micro batch."""
LAUNCH_RATIO, STATIC_RATIO = 0.05, 0.2
"""Where the fit starts: shares of the fixed time in a micro batch, and of the fixed part in the peak."""
FORK_S = 1.0
"""Seconds in which the nursery forks a child, before it opens the workload again."""
MEASURED_SD = 0.02
"""Standard deviation of a measured figure around the fit, as a log ratio."""
NURSERIES = 0.8
"""Share of the generated devices on which children are forked from a nursery. Elsewhere a lost child imports again."""


class Costs(BaseModel):
    """Seconds of the actions of a search, beside the steps of the plans.

    Attributes:
        open_s: from the start of the command to the first probe: imports, building the model, survey.
        prepare_s: of a run beside its steps: building the step, fetching the batches, putting everything back.
        check_s: of comparing the gradient of one plan.
        trace_s: of tracing one plan.
        child_s: of a new child after one was lost.
        compile_s: of compiling a combination for the first time, by the value of the knob `compile`.
        again_ratio: share of it that another micro batch of a compiled combination takes.
        lost_ratio: probability that a run ends with the loss of its child.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    open_s: float
    prepare_s: float
    check_s: float
    trace_s: float
    child_s: float
    compile_s: dict[str, float] = {}
    again_ratio: float = 0.5
    lost_ratio: float = 0.0


class Run(BaseModel):
    """A plan that ran: its values, the seconds of a step, and its peak in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: dict[str, KnobValue]
    step_s: float
    peak_bytes: int

    @property
    def plan(self) -> Plan:
        """The plan."""
        return Plan(values=self.values)


class Timeline(BaseModel):
    """The costs of a search on a device, and the plans that ran in it.

    Attributes:
        name: name of the timeline.
        source: where the figures come from: device, versions, date, command.
        host: whether the device is a CPU, where exceeding the budget harms the machine.
        costs: seconds of the actions.
        budget_bytes: memory budget.
        space: the plans that may be proposed.
        runs: the plans that ran, the baseline among them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    host: bool
    costs: Costs
    budget_bytes: int
    space: SpaceFacts
    runs: tuple[Run, ...] = Field(min_length=1)


def read(path: Path) -> Timeline:
    """Returns the timeline of a file."""
    return Timeline.model_validate_json(path.read_text(encoding="utf-8"))


def text(timeline: Timeline) -> str:
    """Returns the text of the file of a timeline."""
    return json.dumps(timeline.model_dump(mode="json", exclude_defaults=True), indent=1) + "\n"


def recorded() -> list[Timeline]:
    """Returns the recorded timelines, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.json"))]


def of_events(name: str, source: str, events: Sequence[Mapping[str, Any]], briefing: Briefing) -> Timeline:
    """Returns the timeline of a search that was recorded as a list of events (`record_timeline.Recorder`).

    Raises:
        ValueError: the baseline did not run.
    """
    measured = [each for each in events if each.get("status") == "measured" and each["purpose"] == "probe"]
    runs = {Plan(values=each["plan"]).key: each for each in measured}
    if briefing.space.baseline.key not in runs:
        raise ValueError(f"the timeline of {name} has no run of the baseline")
    opened_s = next(each["at_s"] for each in events if each.get("kind") == "running")
    return Timeline(
        name=name,
        source=source,
        host=briefing.environment.is_host,
        costs=Costs(
            open_s=opened_s,
            prepare_s=median(_prepare_s(events)),
            check_s=max(_phase_s(events, "check"), default=0.0),
            trace_s=median(_phase_s(events, "trace") or [0.0]),
            child_s=FORK_S + sum(_phase_s([each for each in events if each["at_s"] <= opened_s], "open")),
            **_compile_costs(measured),
        ),
        budget_bytes=briefing.budget.memory_bytes,
        space=briefing.space,
        runs=tuple(
            Run(values=each["plan"], step_s=each["step_s"], peak_bytes=each["peak_bytes"]) for each in runs.values()
        ),
    )


def _phase_s(events: Sequence[Mapping[str, Any]], phase: str) -> list[float]:
    """Returns the seconds from each begin of a phase to the next event."""
    return [later["at_s"] - each["at_s"] for each, later in pairwise(events) if each.get("phase") == phase]


def _prepare_s(events: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Yields the seconds from the begin of each run to its first step or compilation."""
    began_s: float | None = None
    for each in events:
        if each.get("kind") == "running":
            began_s = each["at_s"]
        elif each.get("phase") in ("step", "compiling") and began_s is not None:
            yield each["at_s"] - began_s
            began_s = None


def _compile_costs(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the seconds of the first compilation by value of the knob, and the share of the later ones."""
    first: dict[str, float] = {}
    again: list[float] = []
    for each in (each for each in measured if each.get("compile_s")):
        value = str(each["plan"]["compile"])
        if value in first:
            again.append(each["compile_s"] / first[value])
        else:
            first[value] = each["compile_s"]
    return {"compile_s": first, **({"again_ratio": median(again)} if again else {})}


# Figures of every plan


class Figures:
    """Seconds of a step and peak of every plan of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        facts = timeline.space
        self.baseline = SearchSpace(facts).baseline
        self._values = [(knob.name, value) for knob in facts.knobs for value in knob.values if value != knob.default]
        base = next(run for run in timeline.runs if run.plan.key == self.baseline.key)
        size, steps = base.plan.micro_batch_size, base.plan.accumulation_steps
        speed = [-math.log(_of(facts, name, value, "expected")) for name, value in self._values]
        growth = [math.log(_of(facts, name, value, "growth")) for name, value in self._values]
        micro_s, root = base.step_s / steps, _root(facts, self._values)
        start = [math.log(LAUNCH_RATIO * micro_s), math.log((1 - LAUNCH_RATIO) * micro_s / size)]
        found = [(run.plan, math.log(run.step_s / run.plan.accumulation_steps)) for run in timeline.runs]
        self._speed = fitted(self._amount, np.array([*start, *speed]), root, found)
        start = [math.log(STATIC_RATIO * base.peak_bytes), math.log((1 - STATIC_RATIO) * base.peak_bytes / size)]
        found = [(run.plan, math.log(run.peak_bytes)) for run in timeline.runs]
        self._peak = fitted(self._amount, np.array([*start, *growth]), root, found)

    def step_s(self, plan: Plan) -> float:
        """Returns the seconds of an optimizer step."""
        return plan.accumulation_steps * math.exp(self._amount(self._speed, plan))

    def peak_bytes(self, plan: Plan) -> int:
        """Returns the peak."""
        return round(math.exp(self._amount(self._peak, plan)))

    def _amount(self, at: Array, plan: Plan) -> float:
        """Returns the log of a fixed amount and one per sample, times the factor of each value of the plan."""
        factors = sum(
            float(at[2 + place]) for place, (name, value) in enumerate(self._values) if plan.values.get(name) == value
        )
        return float(np.logaddexp(at[0], at[1] + math.log(plan.micro_batch_size) + factors))


def _of(facts: SpaceFacts, name: str, value: KnobValue, column: str) -> float:
    """Returns what a knob expects of a value; 1 if it expects nothing."""
    knob = next(knob for knob in facts.knobs if knob.name == name)
    found = getattr(knob, column)
    return float(found[knob.values.index(value)]) if found else 1.0


def _root(facts: SpaceFacts, values: Sequence[tuple[str, KnobValue]]) -> Array:
    """Returns the Cholesky factor of the covariance of the parameters: two amounts, then a factor for each value."""
    large = {knob.name for knob in facts.knobs if knob.ceiling}
    names = np.array([name for name, _ in values])
    spread = np.array([LARGE_SD if name in large else SMALL_SD for name in names])
    alike = np.where(names[:, None] == names, TOGETHER, 0.0)
    np.fill_diagonal(alike, 1.0)
    covariance = np.diag([LAUNCH_SD**2, LARGE_SD**2, *(spread**2)])
    covariance[2:, 2:] = alike * np.outer(spread, spread)
    return np.linalg.cholesky(covariance)


def fitted(
    formula: Callable[[Array, Plan], float], start: Array, root: Array, found: Sequence[tuple[Plan, float]]
) -> Array:
    """Returns the parameters of a formula that fit what was found and stay near their start.

    Ten steps of Gauss and Newton on the squared residuals of the figures and of the parameters.

    Args:
        formula: log of a figure of a plan, from the parameters.
        start: parameters before anything is known, of shape (n,).
        root: Cholesky factor of their covariance, of shape (n, n).
        found: log of the figure of each plan that ran.
    """
    at, whiten = start.copy(), np.linalg.inv(root)
    for _ in range(10):
        now = np.array([formula(at, plan) for plan, _ in found])
        slopes = np.empty((len(found), len(at)))
        for column in range(len(at)):
            moved = at.copy()
            moved[column] += 1e-4
            slopes[:, column] = (np.array([formula(moved, plan) for plan, _ in found]) - now) / 1e-4
        residuals = (np.array([log for _, log in found]) - now) / MEASURED_SD
        rows = np.concatenate([slopes / MEASURED_SD, whiten])
        at = at + np.linalg.lstsq(rows, np.concatenate([residuals, whiten @ (start - at)]), rcond=None)[0]
    return np.asarray(at, dtype=np.float64)


# Generated timelines


USUAL: dict[str, KnobValue] = {"precision": "bf16", "compile": "default", "optimizer": "fused"}
"""Usual values of the knobs of large spaces."""


def expert(knob: Knob) -> Knob:
    """Returns a knob of a large space with its usual value, as strategies offer it on an accelerator."""
    usual = USUAL.get(knob.name)
    return knob.model_copy(update={"usual": usual}) if usual in knob.values else knob


def generated(number: int) -> tuple[str, Costs, float]:
    """Returns the costs of a generated device.

    Imports take 1 to 40 s, a step of the baseline 5 ms to 20 s, and compiling 3 to 300 s. A child is lost in 2 % of the
    runs. What opening, checking and tracing take follows from these.

    Returns:
        Name of the large space (`LARGE`) with its speeds and peaks, the costs, and the seconds of a baseline's step.
    """
    chance = random.Random(f"timeline {number}")

    def between(low: float, high: float) -> float:
        return math.exp(chance.uniform(math.log(low), math.log(high)))

    name = chance.choice([name for name in sorted(LARGE) if name.endswith("_2k")])
    imports_s, step_s, compile_s = between(1, 40), between(0.005, 20), between(3, 300)
    nursery = chance.random() < NURSERIES
    modes = {"default": 1.0, "max-autotune": 5.0, "reduce-overhead": 2.0}
    costs = Costs(
        open_s=1.5 * imports_s + 4 * step_s,
        prepare_s=0.2 + between(0.05, 1.0),
        check_s=0.3 + 3 * step_s,
        trace_s=between(0.3, 15.0),
        child_s=1.0 if nursery else imports_s,
        compile_s={mode: factor * compile_s for mode, factor in modes.items()},
        again_ratio=chance.uniform(0.2, 1.0),
        lost_ratio=0.02,
    )
    return name, costs, step_s
