"""Large spaces: simulated devices with 2,000 to 200,000 plans, computed from a formula and never stored.

They have what makes a grown space hard: compilation that is charged for each new combination, checkpointing that trades
time for memory, values that help only together, sizes with cliffs, a value that fails at any size, values that
conflict, and many that matter little or only cost.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.feasibility.plan_features import Array, PlanList
from scripts.bench.search.replay import Bursts
from scripts.bench.search.replay.table import Table
from scripts.bench.search.simulated import MIB, Effect, FakeBench

STEPS = 10
"""Number of steps of a probe, warm-up included."""

Figure = TypeVar("Figure")
Choice = tuple[str, object]
"""A knob and one of its values."""


@dataclass
class LargeBench(FakeBench):
    """A simulated device for a space of many plans. Its true figures are computed for all of them at once.

    Attributes:
        pairs: factor on the step time of plans that have both values.
        cliffs: factor on the step time by micro batch size.
        compile_s: seconds that the first run of each combination with a value takes longer.
        failing: values with which no plan runs, at any size.
    """

    pairs: dict[tuple[Choice, Choice], float] = field(default_factory=dict)
    cliffs: dict[int, float] = field(default_factory=dict)
    compile_s: dict[Choice, float] = field(default_factory=dict)
    failing: frozenset[Choice] = frozenset()
    _compiled: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slower = self._slower

    def rewind(self, seed: int, bursts: Bursts | None = None) -> None:
        """Restarts with other noise at second 0. Bursts are not simulated."""
        self.time.seconds, self._slow, self._random = 0.0, 0.0, random.Random(seed)
        self.runs.clear()
        self._compiled.clear()

    def fits(self, plan: Plan) -> bool:
        """Whether a plan truly runs inside the budget."""
        return super().fits(plan) and not self.failing & set(plan.values.items())

    def best(self) -> Plan:
        """The plan with the highest true throughput among those that fit."""
        fitting = self._peaks <= self.budget_bytes
        for choice in self.failing:
            fitting &= ~self._has(*choice)
        return self.plans.plans[int(np.argmax(np.where(fitting, self.plans.samples / self._step_s, 0.0)))]

    @property
    def grid_s(self) -> float:
        """Seconds for probing every plan, each combination compiled once."""
        compiled = sum(
            seconds * len(np.unique(self._numbers[self._has(*choice)])) for choice, seconds in self.compile_s.items()
        )
        return float(self.prepare_s * len(self.plans.plans) + STEPS * self._step_s.sum() + compiled)

    @cached_property
    def plans(self) -> PlanList:
        """All plans of the space."""
        return PlanList(self.space)

    def _run(self, plan: Plan, purpose: Purpose) -> Outcome:
        chosen = set(plan.values.items())
        if plan.combination.key not in self._compiled:
            self._compiled.add(plan.combination.key)
            self.time.advance(sum(seconds for choice, seconds in self.compile_s.items() if choice in chosen))
        if failing := sorted(f"{name}={value}" for name, value in self.failing & chosen):
            self.runs.append((plan, purpose))
            self.time.advance(self.prepare_s)
            return Outcome(status=Status.REJECTED, reason=f"no kernel for {failing[0]}")
        return super()._run(plan, purpose)

    def _slower(self, plan: Plan) -> float:
        chosen = set(plan.values.items())
        joint = math.prod(factor for pair, factor in self.pairs.items() if chosen.issuperset(pair))
        return joint * self.cliffs.get(plan.micro_batch_size, 1.0)

    # The same figures for all plans.

    @property
    def _numbers(self) -> NDArray[np.int64]:
        return self.plans.points.combinations

    def _has(self, name: str, value: object) -> NDArray[np.bool_]:
        """Returns which plans have a value of a knob."""
        for column, knob in enumerate(self.space.facts.knobs):
            if knob.name == name and value in knob.values:
                return np.asarray(self.plans.points.values[:, column] == knob.values.index(value))
        return np.zeros(len(self._numbers), dtype=np.bool_)

    def _products(self, name: str) -> Array:
        found = np.ones(len(self._numbers))
        for column, knob in enumerate(self.space.facts.knobs):
            each = [float(getattr(self.effects.get((knob.name, value), Effect()), name)) for value in knob.values]
            found *= np.array(each)[self.plans.points.values[:, column]]
        return found

    @cached_property
    def _peaks(self) -> Array:
        sizes, accumulating = self.plans.sizes, self.plans.samples > self.plans.sizes
        fixed = np.zeros(len(sizes))
        for choice, effect in self.effects.items():
            fixed[self._has(*choice)] += effect.fixed_mib
        held = np.where(accumulating, self.gradient_mib, 0.0)
        samples = self.sample_mib * self._products("activations")
        backward = self.static_mib + np.maximum(held, 0.4 * self.gradient_mib) + samples * sizes
        head = self.static_mib + held + (self.logits_mib + 0.7 * samples) * sizes
        optimizer = self.static_mib + self.gradient_mib + fixed
        return np.asarray(np.round(np.maximum(np.maximum(backward, head), optimizer) * MIB), dtype=np.float64)

    @cached_property
    def _step_s(self) -> Array:
        sizes, steps = self.plans.sizes, self.plans.samples / self.plans.sizes
        slower = 1 + self.decline * np.maximum(0.0, np.log2(sizes / self.knee))
        micro = self.launch_s * self._products("launch") + self.compute_s * slower * sizes * self._products("compute")
        total = micro * steps + self.update_s * self._products("update")
        for (first, second), factor in self.pairs.items():
            total[self._has(*first) & self._has(*second)] *= factor
        for size, factor in self.cliffs.items():
            total[sizes == size] *= factor
        _, places = np.unique(self._numbers, return_index=True)
        keys = [self.plans.plans[int(place)].combination.key for place in places]
        factors = [math.exp(random.Random(key + str(self.seed)).gauss(0, self.interaction)) for key in keys]
        return np.asarray(total * np.array(factors)[self._numbers], dtype=np.float64)


class Figures(Mapping[str, Figure]):
    """True figures of plans by their key, computed when they are asked for.

    Args:
        figure: returns the figure of a plan, or None if it has none.
        count: number of plans.
    """

    def __init__(self, figure: Callable[[Plan], Figure | None], count: int) -> None:
        self._figure, self._count = figure, count
        self._known: dict[str, Figure | None] = {}

    def __getitem__(self, key: str) -> Figure:
        if key not in self._known:
            self._known[key] = self._figure(Plan(values=json.loads(key)))
        found = self._known[key]
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        raise TypeError("the figures of a large space are computed for one plan at a time")

    def __len__(self) -> int:
        return self._count


def table_of(name: str, bench: LargeBench) -> Table:
    """Returns the space and the budget of a device as a table without entries."""
    return Table(
        name=name,
        created="2026-01-01T00:00:00+00:00",
        environment=Environment(workload=name, device_type="fake", device_name="Fake", capacity_bytes=2**50),
        budget=Budget(memory_bytes=bench.budget_bytes),
        space=bench.space.facts,
    )


def peaks_of(bench: LargeBench) -> Figures[int]:
    """Returns the true peak of each plan by its key."""
    return Figures(bench.peak_bytes, len(bench.plans.plans))


def scores_of(bench: LargeBench) -> Figures[float]:
    """Returns the true throughput of each plan that fits by its key."""
    return Figures(lambda plan: bench.samples_per_s(plan) if bench.fits(plan) else None, len(bench.plans.plans))
