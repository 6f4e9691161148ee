"""Table: a complete grid of plans that were measured on a real device, to score searchers and estimators."""

import json
from collections import Counter
from statistics import median
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.errors import UsageError
from autofit.core.measurement import Measurement, steady
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts

TABLE_SCHEMA = "autofit.table/1"


class Block(BaseModel):
    """One block of a plan, run some time after its probe, with the noise and the drift of that moment.

    Attributes:
        at_s: seconds since the recording began.
        step_times_s: raw wall times of whole optimizer steps, in order; none when the block failed.
        steps_per_window: number of steps over which each value is a mean (`Measurement.steps_per_window`).
        tokens_per_step: useful tokens of one step; None if unknown.
        cycle: number of values of `step_times_s` after which the same batches recur (`Measurement.cycle`).
        reason: reason why the block failed, or "".
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at_s: float
    step_times_s: tuple[float, ...] = ()
    steps_per_window: int = Field(default=1, ge=1)
    tokens_per_step: float | None = None
    cycle: int = Field(default=1, ge=1)
    reason: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.step_times_s) == bool(self.reason):
            raise ValueError("a block has either step times or the reason why it has none")
        return self

    @classmethod
    def of(cls, measurement: Measurement, at_s: float) -> Self:
        """Returns the block of a measurement."""
        shared = {"step_times_s", "steps_per_window", "tokens_per_step", "cycle"}
        return cls(at_s=at_s, **measurement.model_dump(include=shared))

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step of a block that ran, see `autofit.core.measurement.steady`."""
        return steady(self.step_times_s, self.cycle)


class Entry(BaseModel):
    """The recorded runs of one plan.

    Attributes:
        plan: the plan that ran.
        at_s: seconds since the recording began at which its probe ended.
        outcome: outcome of the probe: status and reason, memory, raw step times, and its duration in `duration_s`.
        blocks: later blocks, each at another moment; none for a plan that was not measured.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    at_s: float
    outcome: Outcome
    blocks: tuple[Block, ...] = ()

    def score(self, objective: Objective) -> float | None:
        """Returns the throughput: the median over the blocks that ran, else that of the probe; None if not measured.

        Blocks take precedence, because a probe that was ended as hopeless was timed on the worst batch only.
        """
        measurement = self.outcome.measurement
        if not self.outcome.measured or measurement is None:
            return None
        ran = [block for block in self.blocks if block.step_times_s]
        if not ran:
            return objective.score(measurement)
        units = [self.units(block, objective) for block in ran]
        return median(count / block.step_time_s for count, block in zip(units, ran, strict=True))

    def units(self, block: Block, objective: Objective) -> float:
        """Returns the number of the objective's units, samples or tokens, in a step of a block."""
        tokens = block.tokens_per_step if objective.unit == "tokens" else None
        return self.plan.global_batch_size if tokens is None else tokens


class Table(BaseModel):
    """A grid of measured plans. Kept in `tests/data/tables` and beside the results of a benchmark.

    Attributes:
        schema_name: schema and version of the record.
        name: short description of the workload.
        created: UTC time in ISO 8601 at which the recording began.
        environment: environment of all entries.
        budget: the memory budget that was enforced, or only compared with where it cannot be enforced.
        space: the plans of the complete grid.
        entries: the plans that ran so far, in the order in which they ran; each plan once.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    schema_name: Literal["autofit.table/1"] = Field(default="autofit.table/1", alias="schema")
    name: str
    created: str
    environment: Environment
    budget: Budget
    space: SpaceFacts
    entries: tuple[Entry, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        plans = [entry.plan for entry in self.entries]
        twice = [plan for plan, count in Counter(plans).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} has more than one entry; expected one")
        space = SearchSpace(self.space)
        foreign = next((why for plan in plans if (why := space.violation(plan)) is not None), None)
        if foreign is not None:
            raise ValueError(f"an entry is not in the table's space: {foreign}")
        return self

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the complete grid, the baseline among them."""
        return tuple(SearchSpace(self.space).plans())

    @property
    def objective(self) -> Objective:
        """The objective of the plans: useful tokens if they were counted, else samples."""
        measured = [entry.outcome.measurement for entry in self.entries]
        counted = any(each is not None and each.tokens_per_step is not None for each in measured)
        return Objective(unit="tokens" if counted else "samples")

    def missing(self) -> tuple[Plan, ...]:
        """Returns the plans of the grid without an entry; none if the table is complete."""
        known = {entry.plan for entry in self.entries}
        return tuple(plan for plan in self.plans if plan not in known)

    def best(self, objective: Objective) -> Entry | None:
        """Returns the fastest plan that ran inside the budget, or None."""
        scored = [(score, entry) for entry in self.entries if (score := entry.score(objective)) is not None]
        return max(scored, key=lambda pair: pair[0], default=(0.0, None))[1]

    def to_json(self) -> str:
        """Returns the table as JSON text with one line per entry, so that a diff shows the changed entries."""
        facts = self.model_dump(mode="json", by_alias=True, exclude={"entries"})
        lines = [entry.model_dump_json(exclude_defaults=True) for entry in self.entries]
        return json.dumps(facts)[:-1] + ', "entries": [\n' + ",\n".join(lines) + "\n]}\n"


def read_table(text: str, name: str) -> Table:
    """Returns the table that `text` holds.

    Args:
        text: JSON, as `Table.to_json` writes it.
        name: name of the file, for the message.

    Raises:
        UsageError: the text is not valid JSON, has another schema version, or is not a valid table.
    """
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{name} is not valid JSON ({error}); expected a table of {TABLE_SCHEMA}. Record it again."
        ) from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != TABLE_SCHEMA:
        raise UsageError(
            f"{name} has the schema {schema!r}; this version reads {TABLE_SCHEMA}. Record the table again, or read it "
            "with the version that wrote it."
        )
    try:
        return Table.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the table"
        raise UsageError(f"{name} is not a valid table: {where}: {first['msg']}. Record it again.") from None
