"""A simulated device whose true speeds and peaks are known, and a trial log in memory: a search runs without torch.

The simulation follows the behaviour of real steps. Live memory of each phase is affine in the micro batch size, so the
peak is a maximum of lines. A micro step takes a fixed time and a time per sample. An optimizer step is paid once.
The synthetic tables are recorded on it (`tables.py`), and the tests of the search run on it (`tests.fakes`).
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import OPEN, SLOW_S, Purpose, RunTerms, Trial
from scripts.bench.search.replay import VirtualTime, gone_on

MIB = 2**20


@dataclass
class MemoryLog:
    """A `TrialLog` in memory. `running` and `finished` hold what a study would have on disk."""

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

    def drop(self, reason: str, plan: Plan | None = None) -> None:
        self.dropped.append(reason)
        self.past = () if plan is None else tuple(trial for trial in self.past if trial.plan != plan)

    def note(self, name: str, value: dict[str, object]) -> None:
        self.notes[name] = value

    def kept_notes(self) -> Mapping[str, object]:
        return self.notes


@dataclass(frozen=True)
class Effect:
    """Effect of one value of a knob on the simulated device.

    Attributes:
        compute: factor on the seconds per sample.
        launch: factor on the fixed seconds of a micro step.
        update: factor on the seconds of an optimizer step.
        activations: factor on the memory per sample.
        fixed_mib: memory that is added while the optimizer runs; negative if it is saved.
    """

    compute: float = 1.0
    launch: float = 1.0
    update: float = 1.0
    activations: float = 1.0
    fixed_mib: float = 0.0


@dataclass
class FakeBench:
    """A simulated device whose true speeds and peaks are known.

    Attributes:
        space: space of the plans that it can run.
        budget_bytes: memory budget.
        effects: effect of each (knob, value).
        time: virtual clock, advanced by the cost of each run.
        seed: determines the noise.
        noise: standard deviation of one step, as a ratio.
        drift: standard deviation of a whole probe, as a ratio; half of the variance changes slowly, as on a machine
            that warms up.
        static_mib: weights and optimizer state.
        gradient_mib: gradients; live beside the activations with accumulation, and while the optimizer runs.
        sample_mib: activations of one sample in the backward pass.
        logits_mib: logits of one sample, in a phase that starts lower and grows faster with the micro batch size.
        compute_s: seconds per sample.
        launch_s: fixed seconds per micro step.
        update_s: seconds per optimizer step.
        decline: slowdown of a sample per doubling of the micro batch size beyond `knee`, as a ratio.
        interaction: standard deviation of a random factor for each combination, as a ratio.
        slower: further factor on the step time of a plan.
        extra_mib: further memory of a plan.
        faults: by key of the plan, a function from the purpose to the outcome that replaces the run, or None to run it.
        runs: the plans that ran, with their purpose, in order.
    """

    space: SearchSpace
    budget_bytes: int
    effects: dict[tuple[str, object], Effect] = field(default_factory=dict)
    time: VirtualTime = field(default_factory=VirtualTime)
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
        interaction = random.Random(plan.combination.key + str(self.seed)).gauss(0, self.interaction)
        return total * math.exp(interaction) * self.slower(plan)

    def samples_per_s(self, plan: Plan) -> float:
        """The true throughput."""
        return plan.global_batch_size / self.step_time_s(plan)

    def fits(self, plan: Plan) -> bool:
        """Whether a plan truly runs inside the budget."""
        return self.peak_bytes(plan) <= self.budget_bytes and plan.key not in self.faults

    def best(self) -> Plan:
        """The plan with the highest true throughput among those that fit."""
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
        """How much slower a plan is than the best plan, as a ratio."""
        return 1 - self.samples_per_s(plan) / self.samples_per_s(self.best())

    def probes(self, purpose: Purpose = Purpose.PROBE) -> list[Plan]:
        """The plans that were run for a purpose."""
        return [plan for plan, why in self.runs if why is purpose]

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan: the function `evaluate` of a bench. One whose proof has a fault is not proven in its probe."""
        began = self.time.seconds
        outcome = self._run(plan, purpose)
        faulty = plan.key in self.faults and self.faults[plan.key](Purpose.PROOF) is not None
        if purpose is Purpose.PROBE and not faulty:
            outcome = gone_on(outcome, terms, self.time)
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
        if purpose is Purpose.PROBE and measurement.step_times_s[0] > SLOW_S:
            steps = 2
            measurement = measurement.model_copy(update={"step_times_s": measurement.step_times_s[:steps]})
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


def costs_of_a_device(chance: random.Random, launch_s: float) -> dict[str, float]:
    """Returns fields of a `FakeBench`, which differ by some percent between devices.

    Args:
        chance: draws the differences.
        launch_s: the usual fixed time of a micro step.
    """
    return {
        "static_mib": 2000 * chance.uniform(0.8, 1.2),
        "gradient_mib": 500.0,
        "sample_mib": 120 * chance.uniform(0.8, 1.2),
        "logits_mib": 20.0,
        "compute_s": 0.004 * chance.uniform(0.85, 1.15),
        "launch_s": launch_s * chance.uniform(0.85, 1.15),
        "update_s": 0.010 * chance.uniform(0.85, 1.15),
        "noise": 0.015,
        "drift": 0.008,
        "interaction": 0.004,
    }


def space_of(
    knobs: Sequence[Knob], sizes: Sequence[int], baseline_size: int, global_batch_size: int | None = None
) -> SearchSpace:
    """Returns a space whose baseline is the defaults at `baseline_size`."""
    combination = Plan(values={knob.name: knob.default for knob in knobs})
    facts = SpaceFacts(
        knobs=tuple(knobs), sizes=tuple(sizes), global_batch_size=global_batch_size, baseline=combination
    )
    baseline = SearchSpace(facts).at(combination, baseline_size)
    return SearchSpace(facts.model_copy(update={"baseline": baseline}))
