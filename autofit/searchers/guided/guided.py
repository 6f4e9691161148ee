"""Guided: the default searcher, which probes where the expected gain per second of probing is largest.

After each trial the throughput of every plan is estimated anew from all trials (`throughput.py`): the effect of bf16 at
one size informs another, and two changes that are faster alone are expected to be faster together. Memory is judged by
`autofit.feasibility`. The plan with the highest expected gain per second of probing is run if it is likely to fit.
Where memory can be estimated before a plan runs, a plan that may fit is looked at first, and declined if the look makes
it unlikely. When nothing else is left, so are a few plans that the model holds for unlikely to fit. Elsewhere, if only
a larger size would gain and may not fit, a smaller size of its combination runs first.

The expected gain is the mean improvement over the best known plan beyond half the tie margin, where a loss counts as
zero (Jones, Schonlau and Welch, 1998). When no plan is worth a probe any more, the search ends (`stopping.py`).

The next plan is computed from the trials alone, so a resumed search continues where it was.
"""

import math
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autofit.core.measurement import Measurement
from autofit.core.outcome import COMPILING, Outcome, Status
from autofit.core.plan import MICRO_BATCH_SIZE, Plan
from autofit.core.space import Omission
from autofit.core.trial import SLOW_S, SLOW_STEPS, STEPS, Purpose, Trial
from autofit.feasibility.plan_features import Array
from autofit.feasibility.surrogate import Belief
from autofit.searchers.base import Problem, Searcher
from autofit.searchers.guided.exclusions import Exclusion, Omissions, chances_to_run, exclusions
from autofit.searchers.guided.gain_per_second import Candidates, expected_gains
from autofit.searchers.guided.stopping import Payback, least_gain, unsettled
from autofit.searchers.guided.throughput import Throughput, plainer, usual_plans

MAX_DEVIATIONS_AHEAD = 3.0
"""A plan that must beat its estimate by this many deviations has an expected gain below 0.0004 deviations."""
MAX_RISKS = 2
"""Maximum number of plans that run at the end though they are unlikely to fit."""
MAX_HOPES = 8
"""Maximum number of plans that are looked at when nothing else is worth a probe, though they are unlikely to fit."""
MAX_STEPS = 8
"""Maximum number of plans that run to show how the memory of their combination grows."""
MAX_REACH = 8
"""Maximum size as a multiple of the largest that ran: the models extrapolate poorly beyond."""


class Guided(Searcher):
    """Probes where the expected gain per second is largest (see the module)."""

    name = "guided"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._feasibility, self._knobs = problem.feasibility, problem.space.facts.knobs
        self._place, self._plans = self._feasibility.plans.place, self._feasibility.plans.plans
        self._points = self._feasibility.plans.points
        self._sizes, self._samples = self._feasibility.plans.sizes, self._feasibility.plans.samples
        self._barred = self._feasibility.plans.barred()
        self._outcomes: dict[int, Outcome] = {}
        self._scores: dict[int, float] = {}
        self._belief: Belief | None = None  # valid until something is learned
        self._steps = self._hopes = 0
        self._risks: set[int] = set()
        self._looked: set[int] = set()
        self._declined: set[int] = set()
        self._throughput = Throughput(self._knobs, self._points)
        groups = usual_plans(problem.space)
        self._openers = [[place for plan in group if (place := self._place(plan)) is not None] for group in groups]
        pinned = problem.space.facts.pinned  # its warm-up cannot be avoided, so it costs nothing
        paid = [k.model_copy(update={"warm_up_s": ()}) if k.name in pinned else k for k in self._knobs]
        self._payback = Payback(paid, self._points, problem.objective)

    def tell(self, trial: Trial) -> None:
        """Learns from a trial; a block of a race and an interrupted trial say nothing about a plan."""
        place, outcome = self._place(trial.plan), trial.outcome
        if place is None or trial.purpose is Purpose.BLOCK or outcome.status is Status.INTERRUPTED:
            return
        self._belief, self._outcomes[place] = None, outcome
        self._scores.pop(place, None)
        if outcome.measurement is not None and outcome.status in (Status.MEASURED, Status.OVER_BUDGET):
            self._scores[place] = self.problem.objective.score(outcome.measurement)

    def leave_out(self, refused: Callable[[Plan], bool]) -> None:
        """Proposes none of these plans any more."""
        self._barred = self._barred | np.array([refused(plan) for plan in self._plans], dtype=np.bool_)
        self._belief = None

    def expected_s(self, plan: Plan) -> float | None:
        """Returns the seconds that a probe of a plan is expected to take; None before a plan was measured."""
        place = self._place(plan)
        return None if place is None or not self._has_measured else float(self._seconds(self._believe())[place])

    def expected_gain(self, plan: Plan) -> float | None:
        """Returns the expected gain of a plan over the best that ran; None before a plan was measured."""
        place = self._place(plan)
        return None if place is None or not self._has_measured else float(self._gains(self._believe())[place])

    def ask(self) -> Plan | None:
        """Returns the plan with the highest expected gain per second of probing; the baseline first.

        A plan that a closer look makes unlikely to fit is declined, and the next best is returned. One that is chosen
        again after it was declined is returned.
        """
        looked = False
        while (place := self._best()) is not None:
            plan = self._plans[place]
            if place in self._declined:
                return plan
            if self.problem.is_over():
                return None if looked else plan
            looked = True
            self._feasibility.look(plan, at_stake_s=self.expected_s(plan))
            self._looked.add(place)
            if self._is_wanted(place):
                return plan
            self._declined.add(place)
        return None

    def omissions(self) -> list[Omission]:
        """Returns for each combination without a measurement why it has none."""
        if not self._has_measured:
            return []
        belief, fits = self._believe(), self._feasibility
        excluded, fastest, limit = self._exclusions(), self._fastest(belief), self.problem.memory_bytes
        return Omissions(fits, limit, self._outcomes, excluded, belief, fastest, self._warm_ups_s()).found()

    @property
    def _has_measured(self) -> bool:
        """Whether a plan was measured. Until then the search looks for one that fits."""
        return any(outcome.measured for outcome in self._outcomes.values())

    def _best(self) -> int | None:
        """Returns the plan to run next by what is known, or None."""
        if not self._has_measured:
            known = {self._plans[place]: outcome for place, outcome in self._outcomes.items()}
            plan = first_feasible(self.problem, known)
            return None if plan is None else self._place(plan)
        seconds = self._seconds(belief := self._believe())
        too_long = seconds > self.problem.patience_s()
        if (usual := self._usual(too_long)) is not None:
            return usual
        gains = np.where(too_long, 0.0, self._gains(belief))
        place = self._plainer(self._most_worthy(gains, seconds), gains)
        return self._unsettled(belief, too_long) if place is None else place

    def _usual(self, too_long: NDArray[np.bool_]) -> int | None:
        """Returns a plan that an expert writes at once, ends in time and is likely to fit; None once each group ran."""
        due = [group for group in self._openers if not any(place in self._scores for place in group)]
        excluded = self._excluded() | too_long
        excluded[[*self._outcomes, *self._declined]] = True
        able = (place for group in due for place in group if not excluded[place])
        return next((place for place in able if self._feasibility.is_likely(self._plans[place])), None)

    def _is_wanted(self, place: int) -> bool:
        """Returns whether a plan is to be run, now that it was looked at."""
        if place in self._risks or not self._has_measured:
            return True
        plan = self._plans[place]
        # Where any plan can be estimated, a plan without an estimate of its own is judged by the model.
        known = self._feasibility.is_estimated(plan) or self._feasibility.baseline_is_estimated
        return not known or self._feasibility.is_likely(plan)

    def _believe(self) -> Belief:
        """Returns the posterior of the log throughput of every plan."""
        if self._belief is None:
            self._belief = self._throughput.believe(self._scores, self._measurements())
        return self._belief

    def _measurements(self) -> dict[int, Measurement]:
        ran = {place: self._outcomes[place].measurement for place in self._scores}
        return {place: measurement for place, measurement in ran.items() if measurement is not None}

    def _warm_ups_s(self) -> Array:
        overdue = {
            place: outcome.duration_s
            for place, outcome in self._outcomes.items()
            if outcome.status is Status.NOT_COMPILED and outcome.phase == COMPILING
        }
        return self._payback.warm_ups_s(self._measurements(), overdue)

    def _gains(self, belief: Belief) -> Array:
        """Returns the expected gain of each plan over the best that ran; 0 for a plan that is hopeless or excluded."""
        margin = math.log1p(self.problem.objective.tie_ratio) / 2
        ahead = belief.mean - self._fastest(belief) - margin
        hopeful = (ahead > -MAX_DEVIATIONS_AHEAD * belief.deviation) & ~self._excluded()
        hopeful[list(self._outcomes)] = False
        gains = np.zeros(len(ahead))
        gains[hopeful] = expected_gains(ahead[hopeful], belief.deviation[hopeful])
        gains *= chances_to_run(self._points, self._outcomes, self._scores)
        return gains - self._payback.costs(self._measurements())

    def _least_gain(self) -> float:
        """Returns the expected gain that is worth a probe now."""
        return least_gain(len(self._scores), self._feasibility.baseline_is_estimated)

    def _fastest(self, belief: Belief) -> float:
        """Returns the posterior mean of the log throughput of the fastest plan that ran and may be recommended."""
        ran = [place for place in self._scores if self._outcomes[place].measured and not self._barred[place]]
        # If only the baseline ran and it may not be recommended, every other plan is a gain.
        return float(max(belief.mean[place] for place in ran)) if ran else float(belief.mean.min()) - 1.0

    def _seconds(self, belief: Belief) -> Array:
        """Returns the estimated duration of a probe of each plan: its steps, and the fixed cost of a probe."""
        step_s = self._samples / np.exp(belief.mean)
        work_s = np.where(step_s > SLOW_S, SLOW_STEPS, STEPS) * step_s + self._warm_ups_s()
        ran = ((outcome.duration_s, outcome.measurement) for outcome in self._outcomes.values() if outcome.duration_s)
        spent = [took_s - m.all_steps * m.step_time_s - (m.startup_s or 0.0) for took_s, m in ran if m is not None]
        fixed_s = max(median(spent), 0.0) if spent else 0.0
        return np.asarray(fixed_s + work_s + 1e-9, dtype=np.float64)

    def _excluded(self) -> NDArray[np.bool_]:
        """Returns which plans are not run, whatever their expected gain."""
        excluded = self._barred.copy()
        if MICRO_BATCH_SIZE not in self.problem.space.facts.pinned:  # no smaller size leads up to a pinned one
            excluded |= self._sizes > MAX_REACH * max(self._sizes[place] for place in self._scores)
        for each in self._exclusions():
            excluded |= each.mask
        return np.asarray(excluded, dtype=np.bool_)

    def _exclusions(self) -> list[Exclusion]:
        unpaid = self._payback.never(self._measurements())
        return [*exclusions(self._knobs, self._points, self._outcomes, self._scores), *unpaid]

    def _most_worthy(self, gains: Array, seconds: Array) -> int | None:
        """Returns the plan with the most gain per second: one that is likely to fit, a step, else a risk or a hope."""
        fits, least = self._feasibility, self._least_gain()
        candidates = Candidates(gains, seconds, least, self._outcomes, self._looked, fits)
        sure, step, risk, hope = candidates.proposals(self._steps < MAX_STEPS and not fits.baseline_is_estimated)
        if step.rate > sure.rate:
            self._steps += 1
            return step.place
        if sure.place is None and risk.place is not None and len(self._risks) < MAX_RISKS and not fits.is_careful:
            self._risks.add(risk.place)
            return risk.place
        if sure.place is None and hope.place is not None and self._hopes < MAX_HOPES:
            self._hopes += 1
            return hope.place
        return sure.place

    def _plainer(self, place: int | None, gains: Array) -> int | None:
        """Returns the plan without what trades time for memory, if it is worth a probe and likely to fit."""
        plan = None if place is None else plainer(self.problem.space.facts, self._plans[place])
        other = None if plan is None else self._place(plan)
        if other is None or other in self._declined or gains[other] < self._least_gain():
            return place
        return other if self._feasibility.is_likely(self._plans[other]) else place

    def _unsettled(self, belief: Belief, too_long: NDArray[np.bool_]) -> int | None:
        """Returns the best plan with a value that was tried at small sizes only, near the size of the best plan."""
        ran = [place for place in self._scores if self._outcomes[place].measured]
        excluded, tried = self._excluded() | too_long, list(self._outcomes)
        excluded[tried] = True
        points, plans, likely = self._points, self._plans, self._feasibility.is_likely
        return unsettled(points, self._sizes, belief.mean, tried, ran, excluded, lambda place: likely(plans[place]))


MAX_TRIED = 8
"""Maximum number of combinations with several changes that are tried, after each change alone."""


def first_feasible(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns the plan to run while none has fitted, or None when nothing is left to try.

    The order is: the baseline, or the largest size of its combination that is estimated to fit; smaller sizes, down to
    the smallest; at that size, or the smallest that it admits, each change alone, and then the combinations with the
    most changes. Sizes at which the user's code failed, and smaller ones, are not tried in other combinations.
    """
    space, base = problem.space, problem.space.baseline.combination
    first = space.baseline.micro_batch_size
    tried = [plan.micro_batch_size for plan in outcomes if plan.combination == base]
    failed = any(outcome.status.at_any_size for plan, outcome in outcomes.items() if plan.combination == base)
    sizes = [s for s in sorted({*space.sizes, first}) if s <= first and (not tried or 2 * s <= min(tried))]
    if tried and not sizes:
        sizes = [s for s in space.sizes[:1] if s < min(tried)]
    if failed or not sizes:
        return _leaner(problem, outcomes)
    plans = [space.baseline if size == first else space.at(base, size) for size in sizes]
    for plan in reversed(plans):
        estimate = problem.feasibility.estimate(plan)
        if estimate is None or (estimate.upper_bytes or estimate.value_bytes) <= problem.memory_bytes:
            return plan
    return plans[0] if tried else plans[-1]


def _leaner(problem: Problem, outcomes: Mapping[Plan, Outcome]) -> Plan | None:
    """Returns another combination at its smallest size: single changes first, then those with the most changes."""
    plans = problem.feasibility.plans
    base, users = problem.space.baseline.combination, problem.space.baseline.micro_batch_size
    failed = [p.micro_batch_size for p, o in outcomes.items() if o.status.of_users_code and p.combination == base]
    allowed = np.flatnonzero(
        ~plans.barred() & (plans.sizes > max((size for size in failed if size < users), default=0))
    )
    numbers, at = np.unique(plans.points.combinations[allowed], return_index=True)
    places = allowed[at]  # of each combination, at its smallest size
    changes = (plans.points.values[places] != plans.points.values[0]).sum(axis=1)
    tried = {plans.number(plan) for plan in outcomes}
    single = next((index for index in np.flatnonzero(changes == 1) if numbers[index] not in tried), None)
    if single is not None:
        return plans.plans[int(places[single])]
    many = [index for index in np.argsort(-changes, kind="stable") if changes[index] > 1]
    ran = sum(numbers[index] in tried for index in many)
    left = next((index for index in many if numbers[index] not in tried), None)
    return plans.plans[int(places[left])] if left is not None and ran < MAX_TRIED else None
