"""Guided: a model of speed and one of memory say where the next probe gains most for its seconds.

After each trial the speed of every plan of the space is believed anew (`throughput.py`), from all that
ran: what bf16 brought at one size says something of another, and two changes that paid are expected to pay together.
Memory is what the estimators say where they give bounds, and elsewhere a model of the same kind, on the part of the
peak that grows (`feasibility.py`). The plan with the highest expected gain per second of probing is run, if
it is likely to fit. Where memory is estimated before a plan runs, what may fit is asked for and looked at; elsewhere,
where only a larger size would gain and may not fit, a smaller one of its combination comes first.
Expected gain is the mean of what a plan wins over the best one known, beyond half the tie margin; losses count as
nothing (Jones, Schonlau and Welch, 1998). When no plan is expected to gain more than `WORTH`, each value of a knob that
was tried at small sizes only is tried once near that of the best plan (`SMALL`), and the search ends.

The next plan is worked out anew from what is known, so a resumed search goes on where it was.
"""

import math
from dataclasses import dataclass
from itertools import islice
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autofit.core.omission import Omission
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import MICRO_BATCH_SIZE, Plan
from autofit.core.statistics import expected_gain
from autofit.core.trial import Purpose, Trial
from autofit.searchers.base import Problem, Searcher
from autofit.searchers.guided.exclusions import Condemned, condemned
from autofit.searchers.guided.feasibility import Feasibility
from autofit.searchers.guided.omissions import Known, omissions
from autofit.searchers.guided.rescue import rescue
from autofit.searchers.guided.surrogate import Array, Belief, points_of
from autofit.searchers.guided.throughput import Throughput

CONSIDERED = 20_000
"""Plans of a space that are looked at: an ask stays cheap in a huge one."""
WORTH = 0.002
"""A plan is run when it is expected to gain this, as a log ratio."""
SMALL, BEHIND = 8, 2.0
"""A value that was tried at no more than this part of the size of the best plan was not judged yet: what a step costs
beside its samples, such as casts, hides there what it brings. One that is believed so many times slower was."""
HOPELESS = 3.0
"""A plan that would have to be so many deviations faster than believed gains less than 0.0004 of a deviation."""
LIKELY, CAUTIOUS = 0.85, 0.9
"""A plan is run when it is at least so likely to fit; the second where exceeding the budget harms the machine."""
WORTH_A_LOOK = 0.1
"""Where any plan is estimated before it runs, one that is at least so likely to fit is asked for: its estimate then
says whether it is run."""
DARE, DARES, DARE_WORTH = 0.3, 2, 0.02
"""In the end so many plans are run that are less likely to fit, but not less than this, if they promise so much."""
STEPS_MOST, STEP_WORTH, HOPE = 8, 0.02, 0.15
"""So many plans are run to see how the memory of their combination grows, where a larger size promises so much; it is
taken to fit with this probability at least."""
REACH = 8
"""A size is at most this multiple of the largest that ran: models are straight lines from far enough away."""
EQUAL, DIGITS = 1e-9, 9
"""Rates that differ by no more than this share are equal, and logarithms that are the same to so many digits: no two
processors round alike, and the search is to be the same."""
STEPS = 8
"""Steps of a probe that cost time, warm-up included."""


class Guided(Searcher):
    """Probes where the expected gain per second is largest (see the module)."""

    name = "guided"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        space = problem.space
        self._knobs = space.facts.knobs
        self._plans = list(islice(space.plans(), CONSIDERED))
        self._places = {plan.key: place for place, plan in enumerate(self._plans)}
        self._points = points_of(self._knobs, self._plans, space.baseline.micro_batch_size)
        self._sizes = np.array([plan.micro_batch_size for plan in self._plans])
        self._samples = np.array([plan.global_batch_size for plan in self._plans])
        self._unpinned = np.array([space.unpinned(plan) is not None for plan in self._plans])
        self._outcomes: dict[int, Outcome] = {}
        self._scores: dict[int, float] = {}
        self._feasibility = Feasibility(problem, self._plans, self._points)
        self._steps = 0
        self._dared: set[int] = set()
        self._looked: set[int] = set()
        self._throughput = Throughput(self._knobs, self._points)

    def tell(self, trial: Trial) -> None:
        """Learns from a trial; a block of a race and an interrupted trial say nothing of a plan."""
        place, outcome = self._places.get(trial.plan.key), trial.outcome
        if place is None or trial.purpose is Purpose.BLOCK or outcome.status is Status.INTERRUPTED:
            return
        self._outcomes[place] = outcome
        self._scores.pop(place, None)
        if outcome.measurement is not None and outcome.status in (Status.MEASURED, Status.OVER_BUDGET):
            self._scores[place] = self.problem.objective.score(outcome.measurement)
        self._feasibility.tell(place, outcome)

    def ask(self) -> Plan | None:
        """Returns the plan with the highest expected gain per second of probing; the user's own first."""
        if not self._began:
            known = {self._plans[place]: outcome for place, outcome in self._outcomes.items()}
            plan = rescue(self.problem, known)
            place = None if plan is None else self._places.get(plan.key)
        else:
            belief = self._believe()
            seconds = self._seconds(belief)
            too_long = seconds > self.problem.patience_s()
            place = self._most_worthy(np.where(too_long, 0.0, self._gains(belief)), seconds)
            place = self._at_size(belief, too_long) if place is None else place
        return None if place is None else self._plans[place]

    def still(self, plan: Plan) -> bool:
        """Says whether a plan is likely enough to fit, now that its memory is known better; a dare need not be.

        Where any plan can be estimated, one of which the look told nothing is judged by what is believed of it.
        """
        place = self._places.get(plan.key)
        if place is None:
            return True
        self._feasibility.look_again()
        self._feasibility.expect(place)
        self._looked.add(place)
        if place in self._dared or not self._began:
            return True
        known = self._feasibility.is_estimated(place) or self._feasibility.all_estimated
        return not known or self._feasibility.likely(place) >= self._likely()

    def vouches(self, plan: Plan) -> bool:
        """Says whether a plan is likely to fit by how much such estimates were off."""
        place = self._places.get(plan.key)
        self._feasibility.look_again()  # the loop may have looked at it without asking `still`
        return (
            place is not None
            and self._feasibility.is_estimated(place)
            and self._feasibility.likely(place) >= self._likely()
        )

    def omissions(self) -> list[Omission]:
        """Returns why nothing of a combination was measured, for each of which nothing was."""
        if not self._began:
            return []
        belief = self._believe()
        known = Known(
            plans=self._plans,
            points=self._points,
            outcomes=self._outcomes,
            condemned=self._condemned(),
            belief=belief,
            fastest=self._fastest(belief),
            likely=self._feasibility.likely,
            estimate=self.problem.estimate,
            memory_bytes=self.problem.memory_bytes,
        )
        return omissions(known, self._likely())

    @property
    def _began(self) -> bool:
        """Whether a plan was measured: until then one that fits is looked for."""
        return any(outcome.measured for outcome in self._outcomes.values())

    def _believe(self) -> Belief:
        """Returns what is believed of the log throughput of every plan."""
        ran = {place: self._outcomes[place].measurement for place in self._scores}
        return self._throughput.believe(self._scores, {place: m for place, m in ran.items() if m is not None})

    def _gains(self, belief: Belief) -> Array:
        """Returns the expected gain of each plan over the best that ran; 0 for what is hopeless or not to be run."""
        margin = math.log1p(self.problem.objective.tie_ratio) / 2
        ahead = belief.mean - self._fastest(belief) - margin
        hopeful = (ahead > -HOPELESS * belief.deviation) & ~self._closed()
        hopeful[list(self._outcomes)] = False
        gains = np.zeros(len(ahead))
        gains[hopeful] = list(map(expected_gain, ahead[hopeful], belief.deviation[hopeful]))
        return gains

    def _fastest(self, belief: Belief) -> float:
        """Returns the log throughput that is believed of the fastest plan that ran."""
        ran = [place for place in self._scores if self._outcomes[place].measured and not self._unpinned[place]]
        # Where only the baseline ran, and it may not be recommended, any other plan is a gain.
        return float(max(belief.mean[place] for place in ran)) if ran else float(belief.mean.min()) - 1.0

    def _seconds(self, belief: Belief) -> Array:
        """Returns about how long a probe of each plan takes: its steps, and what every probe costs beside them."""
        step_s = self._samples / np.exp(belief.mean)
        spent = [
            outcome.duration_s - STEPS * step_s[place]
            for place, outcome in self._outcomes.items() if place in self._scores and outcome.duration_s
        ]  # fmt: skip
        beside_s = max(median(spent), 0.0) if spent else 0.0
        return np.asarray(beside_s + STEPS * step_s + 1e-9, dtype=np.float64)

    def _closed(self) -> NDArray[np.bool_]:
        """Returns which plans are not to be run whatever they promise."""
        closed = self._unpinned.copy()
        if MICRO_BATCH_SIZE not in self.problem.space.facts.pinned:  # there is no step on the way to a pinned size
            closed |= self._sizes > REACH * max(self._sizes[place] for place in self._scores)
        for each in self._condemned():
            closed |= each.mask
        return np.asarray(closed, dtype=np.bool_)

    def _condemned(self) -> list[Condemned]:
        return condemned(self._knobs, self._points, self._outcomes, self._scores)

    def _most_worthy(self, gains: Array, seconds: Array) -> int | None:
        """Returns the plan with the most gain per second: one that is likely to fit, or a step towards one that may."""
        rates, likely, estimated = gains / seconds, self._likely(), self._feasibility.all_estimated
        sure = step = dare = Proposal()
        for place in (int(place) for place in np.argsort(-rates)):
            if rates[place] <= 0 or rates[place] < (1 - EQUAL) * sure.rate:
                break
            if gains[place] < WORTH:
                continue
            fits = self._feasibility.likely(place)
            open_ = estimated and place not in self._looked and not self._feasibility.is_estimated(place)
            if fits >= (WORTH_A_LOOK if open_ else likely):
                if fits * gains[place] >= WORTH:
                    sure = sure.or_better(fits * rates[place], place)
            elif gains[place] >= STEP_WORTH and self._steps < STEPS_MOST and not estimated:
                step = self._step(step, place, gains[place], seconds, likely)
            if DARE <= fits < likely and fits * gains[place] >= DARE_WORTH:
                dare = dare.or_better(fits * rates[place], place)
        return self._chosen(sure, step, dare)

    def _chosen(self, sure: "Proposal", step: "Proposal", dare: "Proposal") -> int | None:
        """Returns the plan to run, of the best that is likely to fit, the best step towards one, and the best dare."""
        if step.rate > sure.rate:
            self._steps += 1
            return step.place
        if sure.place is None and dare.place is not None and len(self._dared) < DARES and not self._careful:
            self._dared.add(dare.place)
            return dare.place
        return sure.place

    def _at_size(self, belief: Belief, too_long: NDArray[np.bool_]) -> int | None:
        """Returns the best plan with a value that was tried at small sizes only, near its size; None without one.

        Args:
            belief: what is believed of all plans.
            too_long: those that the time left is too short for.
        """
        points, sizes, tried = self._points, self._sizes, list(self._outcomes)
        ran = (place for place in self._scores if self._outcomes[place].measured)
        best, closed = max(ran, key=lambda place: float(belief.mean[place])), self._closed() | too_long
        closed[tried] = True
        closed |= belief.mean < belief.mean[best] - math.log(BEHIND)
        apart, means = np.abs(points.octaves - points.octaves[best]).round(DIGITS), belief.mean.round(DIGITS)
        found: list[int] = []
        for knob, own in enumerate(points.values[best]):
            for value in set(points.values[tried, knob].tolist()) - {own}:
                largest = max(sizes[place] for place in tried if points.values[place, knob] == value)
                if SMALL * largest > sizes[best]:
                    continue
                changed = points.values[best].copy()
                changed[knob] = value
                same = np.flatnonzero((points.values == changed).all(axis=1) & (sizes > largest) & ~closed)
                fitting = [int(place) for place in same if self._feasibility.likely(int(place)) >= self._likely()]
                found += sorted(fitting, key=lambda place: apart[place])[:1]
        return max(found, key=lambda place: (means[place], -place), default=None)

    @property
    def _careful(self) -> bool:
        """Whether a plan that does not fit harms the machine, and none is estimated before it runs."""
        return self.problem.cautious and not self._feasibility.all_estimated

    def _likely(self) -> float:
        """Returns how likely a plan has to be to fit: each one that did not makes the next be surer."""
        refused = sum(outcome.status.does_not_fit for outcome in self._outcomes.values())
        doubt = 1 - (CAUTIOUS if self._careful else LIKELY)
        return 1 - doubt * 0.5**refused

    def _step(self, best: "Proposal", target: int, gain: float, seconds: Array, likely: float) -> "Proposal":
        """Returns the largest size below a plan that is likely to fit, which shows how its memory grows; or `best`."""
        points = self._points
        same = (points.combinations == points.combinations[target]) & (points.octaves < points.octaves[target])
        for place in sorted((int(p) for p in np.flatnonzero(same)), key=lambda p: -points.octaves[p]):
            if place in self._outcomes:
                break  # the next size is the target itself, and it was thought too large
            if self._feasibility.tried.suspect(place):
                break
            if self._feasibility.likely(place) >= likely:
                hope = max(self._feasibility.likely(target), HOPE) * gain
                return best.or_better(hope / (seconds[place] + seconds[target]), place)
        return best


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan and what it promises: log ratio per second of probing."""

    rate: float = 0.0
    place: int | None = None

    def or_better(self, rate: float, place: int) -> "Proposal":
        """Returns the better of this offer and another; of equal ones that of the plan which is listed first."""
        first = self.place is not None and place < self.place and rate > (1 - EQUAL) * self.rate
        return Proposal(float(rate), place) if first or rate > (1 + EQUAL) * self.rate else self
