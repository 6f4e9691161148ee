"""A simulated device, a clock that stands still, and a trial log in memory: a search without torch.

The simulation follows what is known of real steps: live memory of each phase is affine in the micro batch, so the peak
is a maximum of lines; the time of a micro step is a fixed part and a part per sample; an optimizer step costs once.
"""

import math
import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit import estimators, searchers
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import Purpose, Trial
from autofit.estimators.base import Estimator
from autofit.feasibility import Feasibility
from autofit.memory.trace import Trace
from autofit.replay import VirtualTime
from autofit.search.tuning import Tuning
from autofit.searchers.base import Problem, Searcher

MIB = 2**20
FakeTime = VirtualTime


class _Notes(list[Any]):
    """A list to which a weak reference can be had."""


def unguarded(found: Any) -> Any:
    """Returns `found` behind a weak reference, which the guard does not follow: what a step writes to it stays."""
    weakref.finalize(unguarded, bool, found).atexit = False  # keeps it, out of the reach of any function of the tests
    return weakref.proxy(found)


def notes() -> Any:
    """Returns a list for what a test's step sees. A plain list is put back after each probe, as a user's would be."""
    return unguarded(_Notes())


@dataclass
class MemoryLog:
    """A `TrialLog` in memory. `running` and `finished` show what would be on disk."""

    past: Sequence[Trial] = ()
    running: dict[int, tuple[Plan, Purpose]] = field(default_factory=dict)
    finished: list[Trial] = field(default_factory=list)
    notes: dict[str, dict[str, object]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        number = len(self.past) + len(self.finished) + len(self.running)
        self.running[number] = (plan, purpose)
        return number

    def finish(self, number: int, outcome: Outcome) -> Trial:
        plan, purpose = self.running.pop(number)
        trial = Trial(number=number, plan=plan, outcome=outcome, purpose=purpose)
        self.finished.append(trial)
        return trial

    def earlier(self) -> Sequence[Trial]:
        return self.past

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)
        self.past = ()

    def note(self, name: str, value: dict[str, object]) -> None:
        self.notes[name] = value


class Fixed(Estimator):
    """An estimator that says the same of every plan, or of some."""

    def __init__(self, estimate: Estimate, only: Callable[[Plan], bool] = lambda plan: True) -> None:
        self.said, self.only = estimate, only

    def tell(self, trial: Trial) -> None:
        pass

    def estimate(self, plan: Plan) -> Estimate | None:
        return self.said if self.only(plan) else None


class Estimates(Estimator):
    """An estimator that is a function, and learns nothing."""

    def __init__(self, function: Callable[[Plan], Estimate | None]) -> None:
        self.function = function

    def tell(self, trial: Trial) -> None:
        pass

    def estimate(self, plan: Plan) -> Estimate | None:
        return self.function(plan)


@dataclass(frozen=True)
class Effect:
    """What one value of a knob does to the fake device.

    Attributes:
        compute: factor on the seconds per sample.
        launch: factor on the fixed seconds of a micro step.
        update: factor on the seconds of an optimizer step.
        activations: factor on the memory per sample.
        fixed_mib: memory added while the optimizer runs, or taken away.
    """

    compute: float = 1.0
    launch: float = 1.0
    update: float = 1.0
    activations: float = 1.0
    fixed_mib: float = 0.0


@dataclass
class FakeBench:
    """A device with known truth.

    Attributes:
        space: the plans that it can run.
        budget_bytes: what a plan may need.
        effects: effect of each (knob, value).
        time: advanced by what each run costs.
        seed: decides the noise.
        noise: standard deviation of one step, as a ratio.
        drift: standard deviation of a whole probe, as a ratio; half of it moves slowly, as a warm machine does.
        static_mib: weights and optimizer state.
        gradient_mib: alive beside the activations under accumulation, and while the optimizer runs.
        sample_mib: activations of one sample in the backward pass.
        logits_mib: of one sample, in a phase of its own that begins lower and is steeper.
        compute_s: per sample. launch_s: per micro step. update_s: per optimizer step.
        decline: how much slower a sample gets per doubling of the micro batch beyond `knee`.
        interaction: standard deviation of what each combination adds of its own, as a ratio.
        slower: factor on the seconds of a plan, for what the rest cannot say.
        extra_mib: memory that a plan needs beside, likewise.
        faults: outcomes instead of a run, by (plan, purpose) or by plan for every purpose.
    """

    space: SearchSpace
    budget_bytes: int
    effects: dict[tuple[str, object], Effect] = field(default_factory=dict)
    time: FakeTime = field(default_factory=FakeTime)
    seed: int = 0
    noise: float = 0.03
    drift: float = 0.015
    static_mib: float = 400.0
    gradient_mib: float = 100.0
    sample_mib: float = 30.0
    logits_mib: float = 10.0
    compute_s: float = 0.002
    launch_s: float = 0.010
    update_s: float = 0.008
    prepare_s: float = 0.5
    decline: float = 0.0
    knee: int = 32
    interaction: float = 0.0
    slower: Callable[[Plan], float] = field(default=lambda plan: 1.0)
    extra_mib: Callable[[Plan], float] = field(default=lambda plan: 0.0)
    faults: dict[str, Callable[[Purpose], Outcome | None]] = field(default_factory=dict)
    runs: list[tuple[Plan, Purpose]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._slow = 0.0
        self._best: Plan | None = None

    def _product(self, plan: Plan, name: str) -> float:
        effects = (self.effects.get(item, Effect()) for item in plan.combination.values.items())
        return math.prod(float(getattr(effect, name)) for effect in effects)

    def peak_bytes(self, plan: Plan) -> int:
        """The true peak."""
        size, activations = plan.micro_batch_size, self._product(plan, "activations")
        fixed = sum(self.effects.get(item, Effect()).fixed_mib for item in plan.combination.values.items())
        held = self.gradient_mib if plan.accumulation_steps > 1 else 0.0
        backward = self.static_mib + max(held, 0.4 * self.gradient_mib) + self.sample_mib * activations * size
        head = self.static_mib + held + (self.logits_mib + 0.7 * self.sample_mib * activations) * size
        optimizer = self.static_mib + self.gradient_mib + fixed
        return round((max(backward, head, optimizer) + self.extra_mib(plan)) * MIB)

    def step_time_s(self, plan: Plan) -> float:
        """The true seconds of an optimizer step."""
        size = plan.micro_batch_size
        slower = 1 + self.decline * max(0.0, math.log2(size / self.knee))
        micro = self.launch_s * self._product(plan, "launch") + self.compute_s * slower * size * self._product(
            plan, "compute"
        )
        total = micro * plan.accumulation_steps + self.update_s * self._product(plan, "update")
        own = random.Random(plan.combination.key + str(self.seed)).gauss(0, self.interaction)
        return total * math.exp(own) * self.slower(plan)

    def samples_per_s(self, plan: Plan) -> float:
        """The true throughput."""
        return plan.global_batch_size / self.step_time_s(plan)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan truly runs inside the budget."""
        return self.peak_bytes(plan) <= self.budget_bytes and plan.key not in self.faults

    def best(self) -> Plan:
        """The plan with the largest true throughput of those that fit."""
        if self._best is not None:
            return self._best
        plans = [self.space.at(c, s) for c in self.space.combinations() for s in self.space.sizes]
        plans.append(self.space.baseline)
        self._best = max((p for p in plans if self.fits(p)), key=self.samples_per_s)
        return self._best

    def feasible(self) -> bool:
        """Whether any plan truly fits."""
        return any(self.fits(self.space.at(c, self.space.sizes[0])) for c in self.space.combinations())

    def regret(self, plan: Plan) -> float:
        """How much slower a plan is than the best, as a ratio."""
        return 1 - self.samples_per_s(plan) / self.samples_per_s(self.best())

    def probes(self, purpose: Purpose = Purpose.PROBE) -> list[Plan]:
        """The plans that were run for a purpose."""
        return [plan for plan, why in self.runs if why is purpose]

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan: the function that `tuner.run` takes."""
        began = self.time.seconds
        outcome = self._run(plan, purpose)
        return outcome.model_copy(update={"duration_s": self.time.seconds - began})

    def _run(self, plan: Plan, purpose: Purpose) -> Outcome:
        self.runs.append((plan, purpose))
        self.time.advance(self.prepare_s)
        fault = self.faults[plan.key](purpose) if plan.key in self.faults else None
        if fault is not None:
            return fault
        peak = self.peak_bytes(plan)
        if peak > 1.3 * self.budget_bytes:
            return Outcome(status=Status.OUT_OF_MEMORY, reason=f"tried to allocate {peak} bytes")
        steps = 4 if purpose is Purpose.BLOCK else 8
        measurement = self._measure(plan, peak, steps)
        self.time.advance(sum(measurement.step_times_s) * (steps + 2) / steps)
        if peak > self.budget_bytes:
            reason = f"peak {peak} above the budget {self.budget_bytes}"
            return Outcome(status=Status.OVER_BUDGET, reason=reason, measurement=measurement)
        return Outcome(status=Status.MEASURED, measurement=measurement)

    def _measure(self, plan: Plan, peak: int, steps: int) -> Measurement:
        share = math.sqrt(0.5)
        self._slow = 0.95 * self._slow + self._random.gauss(0, share * self.drift * math.sqrt(1 - 0.95**2))
        common = self._slow + self._random.gauss(0, share * self.drift)
        true = self.step_time_s(plan)
        times = tuple(true * math.exp(common + self._random.gauss(0, self.noise)) for _ in range(steps))
        memory = Memory(
            allocated_bytes=peak, judged_bytes=peak, judged_by="simulated", static_bytes=round(self.static_mib * MIB)
        )
        return Measurement(step_times_s=times, samples_per_step=plan.global_batch_size, memory=memory)


def always(status: Status, reason: str = "injected") -> Callable[[Purpose], Outcome | None]:
    """Returns a fault that happens each time."""
    return lambda purpose: Outcome(status=status, reason=reason)


def during(purpose: Purpose, status: Status, reason: str = "injected") -> Callable[[Purpose], Outcome | None]:
    """Returns a fault that happens in runs of one purpose."""
    return lambda now: Outcome(status=status, reason=reason) if now is purpose else None


def space_of(
    knobs: Sequence[Knob], sizes: Sequence[int], own_size: int, global_batch_size: int | None = None
) -> SearchSpace:
    """Returns a space whose baseline is the defaults at `own_size`."""
    combination = Plan(values={knob.name: knob.default for knob in knobs})
    facts = SpaceFacts(
        knobs=tuple(knobs), sizes=tuple(sizes), global_batch_size=global_batch_size, baseline=combination
    )
    baseline = SearchSpace(facts).at(combination, own_size)
    return SearchSpace(facts.model_copy(update={"baseline": baseline}))


PRECISION = Knob(name="precision", values=("float32", "tf32", "bf16"), default="float32", growth=(1.0, 1.0, 0.65))
CHECKPOINT = Knob(
    name="checkpoint",
    values=("none", "third", "half", "all"),
    default="none",
    expected=tuple(1 / (1 + share / 3) for share in (0, 1 / 3, 1 / 2, 1)),
    growth=tuple(1 - 0.75 * share for share in (0, 1 / 3, 1 / 2, 1)),
)
OPTIMIZER = Knob(name="optimizer", values=("own", "foreach", "fused"), default="own")
FORMAT = Knob(name="memory_format", values=("contiguous", "channels_last"), default="contiguous")
KNOBS = (PRECISION, CHECKPOINT, OPTIMIZER, FORMAT)


def random_bench(seed: int, knobs: Sequence[Knob] = KNOBS) -> FakeBench:
    """Returns a fake problem: model, device, user's batch and budget are drawn from `seed`."""
    draw = random.Random(seed)
    sizes = draw.choice(((4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32), (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)))
    own = draw.choice(sizes[1:4])
    total = None if sizes[-1] == 128 else draw.choice((None, sizes[-1]))
    activations = sorted((draw.uniform(0.2, 0.9) for _ in range(3)), reverse=True)
    recompute = sorted(draw.uniform(1.03, 1.4) for _ in range(3))
    effects: dict[tuple[str, object], Effect] = {
        ("precision", "tf32"): Effect(compute=draw.uniform(0.5, 1.0)),
        ("precision", "bf16"): Effect(
            compute=draw.uniform(0.3, 1.15), launch=draw.uniform(1.0, 1.3), activations=draw.uniform(0.5, 0.75)
        ),
        ("optimizer", "foreach"): Effect(update=draw.uniform(0.3, 0.8), fixed_mib=draw.uniform(0, 200)),
        ("optimizer", "fused"): Effect(update=draw.uniform(0.15, 0.7)),
        ("memory_format", "channels_last"): Effect(compute=draw.uniform(0.75, 1.15)),
    }
    for value, memory, time in zip(("third", "half", "all"), activations, recompute, strict=True):
        effects["checkpoint", value] = Effect(compute=time, launch=time, activations=memory)
    bench = FakeBench(
        space=space_of(knobs, sizes, own, total),
        budget_bytes=0,
        effects=effects,
        seed=seed,
        static_mib=draw.uniform(50, 2000),
        gradient_mib=draw.uniform(10, 400),
        sample_mib=draw.uniform(5, 100),
        logits_mib=draw.uniform(0, 40),
        compute_s=10 ** draw.uniform(-4, -1.7),
        launch_s=10 ** draw.uniform(-3, -1.5),
        update_s=10 ** draw.uniform(-3, -1.7),
        decline=draw.choice((0.0, 0.0, 0.05)),
        knee=draw.choice((8, 16, 32)),
        interaction=0.015,
        noise=draw.choice((0.02, 0.05)),
        drift=draw.choice((0.01, 0.02)),
    )
    need = bench.peak_bytes(bench.space.baseline) - bench.static_mib * MIB
    bench.budget_bytes = round(bench.static_mib * MIB + need * draw.choice((0.7, 1.05, 1.5, 2.5, 5.0, 20.0)))
    return bench


def tuning_of(bench: FakeBench, log: MemoryLog | None = None, **changes: Any) -> Tuning:
    """Returns a tuning of `bench` with the default searcher and estimators; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "space": bench.space,
        "evaluate": bench.evaluate,
        "objective": Objective(),
        "budget": Budget(memory_bytes=bench.budget_bytes),
        "log": log or MemoryLog(),
        "searcher": searchers.members()[0],
        "estimators": [estimators.Measured()],
        "clock": Clock(bench.time),
        "listen": lambda event: None,
    }
    return Tuning(**(fields | changes))


def problem_of(
    bench: FakeBench, estimate: Callable[[Plan], Estimate | None] = lambda plan: None, **changes: Any
) -> Problem:
    """Returns what a searcher is given of `bench`; `changes` replace its fields."""
    feasibility = Feasibility(bench.space, bench.budget_bytes, [Estimates(estimate)])
    fields: dict[str, Any] = {
        "space": bench.space,
        "objective": Objective(),
        "memory_bytes": bench.budget_bytes,
        "feasibility": feasibility,
    }
    return Problem(**(fields | changes))


def tell(searcher: Searcher, trial: Trial) -> None:
    """Tells a trial as the loop does: first whatever judges memory, then the searcher."""
    searcher.problem.feasibility.tell(trial)
    searcher.tell(trial)


def small_bench(**changes: Any) -> FakeBench:
    """Returns a calm bench of 3 x 4 x 3 x 2 combinations and 5 sizes on which the user's own batch of 8 fits."""
    effects = {
        ("precision", "tf32"): Effect(compute=0.8),
        ("precision", "bf16"): Effect(compute=0.5, activations=0.6),
        ("checkpoint", "third"): Effect(compute=1.1, activations=0.7),
        ("checkpoint", "half"): Effect(compute=1.2, activations=0.5),
        ("checkpoint", "all"): Effect(compute=1.33, activations=0.25),
        ("optimizer", "foreach"): Effect(update=0.6),
        ("optimizer", "fused"): Effect(update=0.4),
        ("memory_format", "channels_last"): Effect(compute=1.05),
    }
    fields: dict[str, Any] = {
        "space": space_of(KNOBS, (4, 8, 16, 32, 64), 8),
        "budget_bytes": 1500 * MIB,
        "effects": effects,
        "noise": 0.01,
        "drift": 0.005,
    }
    return FakeBench(**(fields | changes))


def briefing_of(bench: FakeBench, **changes: Any) -> Briefing:
    """Returns what `bench` would tell of itself before the first probe; `changes` replace its fields."""
    environment = Environment(
        workload="model-data", device_type="fake", device_name="Fake 1", capacity_bytes=2**34, versions={"fake": "1"}
    )
    fields: dict[str, Any] = {
        "space": bench.space.facts,
        "environment": environment,
        "budget": Budget(memory_bytes=bench.budget_bytes, memory_note="as asked"),
        "enforced": True,
    }
    return Briefing(**(fields | changes))


@dataclass(frozen=True)
class OpenedBench:
    """A bench that answers with a function, and traces nothing."""

    briefing: Briefing
    run: Callable[[Plan, Purpose], Outcome]
    proof_start_s: float = 0.0

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan."""
        return self.run(plan, purpose)

    def trace(self, plan: Plan) -> Trace:
        """Is not asked: its briefing has no account."""
        raise AssertionError("a bench without an account was asked for a trace")

    record = trace


def opened(briefing: Briefing, evaluate: Callable[[Plan, Purpose], Outcome]) -> OpenedBench:
    """Returns a bench with this briefing that runs plans by `evaluate`."""
    return OpenedBench(briefing, evaluate)
