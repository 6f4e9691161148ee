"""Staged: compare combinations at one size, take the promising ones to their best sizes, refine.

The next plan is worked out anew from what is known, so a resumed search goes on where it was, and nothing known is
asked again. Only the number of plans asked per stage is kept besides, to bound each stage.

1. anchor: the user's combination at their own size; first at a small one, unless memory is predicted with a bound.
   Where it does not fit, down to the smallest size, then other combinations there, until one runs. Then up, while twice
   the batch pays: at a size that is all overhead and fixed memory, neither faster arithmetic nor saved activations
   would show.
2. compare: one change at a time from the anchor, at one size (every combination, where there are few).
3. promise: the factors seen in 2 and the speed curves predict each other plan from its nearest measured neighbour; the
   largest prediction that fits is probed, while it beats the best plan by more than the tie margin. A combination that
   saves memory and costs time is predicted to win only where a larger batch pays and does not fit without it.
4. save: where memory keeps the best combination small, what costs time, at a larger size.
5. recheck: what was nearly as good at the size of 2, at the best size.
6. refine: the sizes beside the best; in the end, plans that would win clearly and were only guessed not to fit.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

from autofit.core.forecast import Curve, Forecast
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.searchers.base import Problem, Searcher

ENUMERATED = 12
"""Up to this many combinations are all compared; with more, one change at a time and their products."""
CONSIDERED = 4096
"""Combinations looked at when predicting, so that an ask stays cheap in a huge space."""
JUMP = 4
"""A combination goes up in batch at most by this factor at once: its memory curve is known that far at best."""
GUESS_RATIO = 1.05
"""The growing part of a peak is taken as this much larger where it is guessed from another combination."""
DARE_RATIO = 0.9
"""The same, in the end, for the few plans that would win by `DARE_GAIN`: the guess may well be too high."""
DARE_GAIN = 1.05
ROOM_RATIO = 0.9
"""Share of the budget that the anchor may be predicted to need: what is compared with it may need more."""
PAYS_RATIO = 1.1
"""The anchor goes up before anything is compared while twice the batch is predicted to be worth this."""
LESS_RATIO = 0.9
"""A plan that must do with less memory than one that did not fit is tried only if it is thought to need this share."""
MOST = {"rescue": 8, "promise": 10, "save": 3, "recheck": 2, "refine": 3, "dare": 2}
"""Plans asked per stage at most."""
RECHECK_RATIO = 0.85
"""A change that was slower than this at the small size is not tried again at the large one."""


class Staged(Searcher):
    """Compares combinations at one size, takes the promising ones up in batch, refines (see the module)."""

    name = "staged"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._space = problem.space
        self._base = problem.space.baseline.combination
        self._home = problem.space.baseline.micro_batch_size
        self._combinations = list(islice(problem.space.combinations(), CONSIDERED))
        self._forecast = Forecast(problem.space.facts.knobs)
        self._asked: Counter[str] = Counter()

    def tell(self, trial: Trial) -> None:
        """Learns from a trial; a block of a race and an interrupted trial say nothing of a plan."""
        plan, outcome = trial.plan, trial.outcome
        if trial.purpose is Purpose.BLOCK or outcome.status is Status.INTERRUPTED:
            return
        if plan.micro_batch_size not in self._sizes(plan.combination):
            return
        if plan != self._plan(plan.combination, plan.micro_batch_size):
            return
        ran = outcome.status in (Status.MEASURED, Status.OVER_BUDGET) and outcome.measurement is not None
        score = self.problem.objective.score(outcome.measurement) if ran and outcome.measurement else None
        self._forecast.tell(plan, outcome, score)

    def ask(self) -> Plan | None:
        """Returns the first plan that a stage still wants."""
        if (plan := self._user_plan()) is not None:
            return plan
        anchor = self._anchor()
        if anchor is None:
            return self._counted("rescue", self._rescue)
        reference = self._reference(anchor)
        if (plan := self._approach(anchor) or self._compare(anchor.combination, reference)) is not None:
            return plan
        self._forecast.compare(anchor.combination, reference)
        if (best := self._forecast.best()) is not None:
            self._forecast.compare_again(best[0].combination, best[1])
        return (
            self._counted("promise", lambda: self._promise(anchor))
            or self._counted("save", lambda: self._save(anchor, reference))
            or self._counted("recheck", lambda: self._recheck(anchor, reference))
            or self._counted("refine", self._refine)
            or self._counted("dare", lambda: self._dare(anchor))
        )

    def _counted(self, stage: str, wanted: Callable[[], Plan | None]) -> Plan | None:
        plan = wanted() if self._asked[stage] < MOST[stage] else None
        self._asked[stage] += plan is not None
        return plan

    # Plans and what is known of them.

    def _sizes(self, combination: Plan) -> tuple[int, ...]:
        own = {self._home} if combination == self._base else set()
        return tuple(sorted({*self._space.sizes, *own}))

    def _plan(self, combination: Plan, size: int) -> Plan:
        if combination == self._base and size == self._home:
            return self._space.baseline
        return self._space.at(combination, size)

    def _open(self, curve: Curve) -> list[int]:
        """Returns the sizes of a combination that were not tried, none above one that did not fit."""
        return [s for s in self._sizes(curve.combination) if s not in curve.outcomes and s < curve.limit]

    def _fits(self, curve: Curve, size: int, daring: bool = False) -> bool:
        """Says whether a plan is thought to fit; `daring` trusts a guess from another combination less far."""
        budget = self.problem.memory_bytes
        estimate = self.problem.estimate(self._plan(curve.combination, size))
        if estimate is not None and estimate.worst_case:
            estimate = None  # what it will take is not known
        bounded = estimate is not None and not (estimate.lower_bytes is None and estimate.upper_bytes is None)
        if estimate is not None and bounded and estimate.value_bytes > budget:
            return False
        if len(curve.scores) < 2 and self._no_less_than_refused(curve, size, 0.99 if daring else LESS_RATIO):
            return False
        if curve.scores:
            if estimate is None:
                return size <= 2 * max(curve.scores)
            return estimate.value_bytes * (0.9 if daring and not bounded else 1) <= budget
        neighbour = self._forecast.nearest(curve.combination)
        if neighbour is None:
            return True
        change = self._forecast.change(curve.combination, neighbour.combination)
        theirs = self.problem.estimate(self._plan(neighbour.combination, size))
        if theirs is None or change is None:
            return size <= max(neighbour.scores)
        margin = DARE_RATIO if daring else GUESS_RATIO if size > max(neighbour.scores) else 1.0
        return self._forecast.rescaled(theirs.value_bytes, change.memory * margin) <= budget

    def _no_less_than_refused(self, curve: Curve, size: int, ratio: float) -> bool:
        """Whether another combination did not fit at this size, and this one is not thought to need clearly less."""
        for refused in self._forecast.refused(size):
            change = self._forecast.change(curve.combination, refused.combination)
            if refused.combination != curve.combination and change is not None and change.memory > ratio:
                return True
        return False

    # 1. anchor

    def _user_plan(self) -> Plan | None:
        """The user's plan, after a small size has made its memory predictable."""
        curve = self._forecast.curve(self._base)
        if self._home in curve.outcomes:
            return self._walk_down(curve)
        sizes = [s for s in self._sizes(self._base) if s < self._home]
        if not curve.outcomes and (sure := self._sure()) is not None:
            return sure
        if not curve.outcomes and sizes:
            quarter = max((s for s in sizes if 4 * s <= self._home), default=sizes[0])
            return self._plan(self._base, quarter)
        if not curve.scores and curve.limit < math.inf:
            return self._walk_down(curve)
        if curve.scores and not self._fits(curve, self._home):
            between = [s for s in self._open(curve) if max(curve.scores) < s < self._home]
            fitting = [s for s in between if self._fits(curve, s)]
            # One size alone makes memory look steeper than it is; the next size corrects that.
            next_size = between[:1] if len(curve.scores) == 1 else []
            if sizes := fitting[-1:] or next_size:
                return self._plan(self._base, sizes[0])
        return self._space.baseline

    def _sure(self) -> Plan | None:
        """Returns the largest size up to the user's own that is predicted to fit, by the upper bound if it has one."""
        for size in sorted((s for s in self._sizes(self._base) if s <= self._home), reverse=True):
            plan = self._plan(self._base, size)
            estimate = self.problem.estimate(plan)
            if estimate is None:
                return None
            if (estimate.upper_bytes or estimate.value_bytes) <= self.problem.memory_bytes:
                return plan
        return None

    def _walk_down(self, curve: Curve) -> Plan | None:
        """Halves the user's combination until a size fits."""
        tried = min(curve.outcomes)
        smaller = [s for s in self._sizes(self._base) if s < tried]
        if curve.scores or curve.dead or not smaller:
            return None
        half = [s for s in smaller if 2 * s <= tried and self._fits(curve, s)]
        return self._plan(self._base, half[-1] if half else smaller[0])

    def _anchor(self) -> Curve | None:
        """The combination that others are compared with: the user's, or the first that ran."""
        own = self._forecast.curve(self._base)
        return own if own.scores else next(iter(self._forecast.measured), None)

    def _rescue(self) -> Plan | None:
        """Other combinations at the smallest size: single changes, then what saved the most together, then any."""
        size = self._space.sizes[0]
        singles = self._singles(self._base)
        known = {c.key for c in singles if size in self._forecast.curve(c).outcomes}
        for combination in (c for c in singles if c.key not in known):
            self._asked["rescue"] -= 1  # single changes are not counted: each is a value that was never tried
            return self._plan(combination, size)
        many = sorted(self._combinations, key=lambda c: -len(c.changes_from(self._base)))
        lean = [c for c in many if self._is_lean(c, size)]
        for combination in lean + many:
            curve = self._forecast.curve(combination)
            if size not in curve.outcomes and not curve.dead and self._may_run(combination):
                return self._plan(combination, size)
        return None

    def _is_lean(self, combination: Plan, size: int) -> bool:
        """Whether each change of a combination alone saved memory, though not enough."""
        base = self._forecast.curve(self._base).peak_bytes(size)
        if base is None:
            return False
        for name, value in combination.changes_from(self._base).items():
            own = self._forecast.curve(self._base.replace(**{name: value})).peak_bytes(size)
            if own is None or own >= base:
                return False
        return True

    def _may_run(self, combination: Plan) -> bool:
        """Whether no change of a combination alone was found to fail for another reason than memory."""
        changes = combination.changes_from(self._base).items()
        return not any(self._forecast.curve(self._base.replace(**{k: v})).dead for k, v in changes)

    def _approach(self, anchor: Curve) -> Plan | None:
        """Takes the anchor to where a step is neither all overhead nor all fixed memory, so that changes show."""
        top = max(anchor.scores)
        room = ROOM_RATIO * self.problem.memory_bytes
        open_sizes = [s for s in self._open(anchor) if top < s <= JUMP * top and self._fits(anchor, s)]
        sizes = [s for s in open_sizes if self._need(self._plan(anchor.combination, s)) <= room]
        if len(anchor.seen) == 1 and open_sizes:
            return self._plan(anchor.combination, max((s for s in open_sizes if s <= 2 * top), default=open_sizes[0]))
        pays = anchor.score_at(2 * top, anchor) >= PAYS_RATIO * anchor.score_at(top, anchor)
        return self._plan(anchor.combination, sizes[-1]) if sizes and pays else None

    def _need(self, plan: Plan) -> int:
        estimate = self.problem.estimate(plan)
        return 0 if estimate is None else estimate.value_bytes

    # 2. compare

    def _reference(self, anchor: Curve) -> int:
        """The size at which most combinations were tried; among equals the largest."""
        sizes = [s for s in anchor.scores if s in self._space.sizes] or list(anchor.scores)
        return max(sizes, key=lambda s: (self._forecast.tried_at(s), s))

    def _singles(self, anchor: Plan) -> list[Plan]:
        """One change at a time. A value that cannot be combined with the anchor's others comes with fewest changes."""
        if len(self._combinations) <= ENUMERATED:
            return [c for c in self._combinations if c != anchor]
        return list(self._changes(anchor))

    def _changes(self, anchor: Plan) -> Iterator[Plan]:
        for knob in self._space.facts.knobs:
            for value in knob.values:
                changed = anchor.replace(**{knob.name: value})
                if self._space.violation(changed) is not None:
                    having = [c for c in self._combinations if c.values[knob.name] == value]
                    changed = min(having, key=lambda c: len(c.changes_from(anchor)), default=anchor)
                if changed != anchor:
                    yield changed

    def _compare(self, anchor: Plan, size: int) -> Plan | None:
        for combination in self._singles(anchor):
            curve = self._forecast.curve(combination)
            if size in self._open(curve) and not curve.dead and not self._ruled_out(curve, size):
                return self._plan(combination, size)
        return None

    def _ruled_out(self, curve: Curve, size: int) -> bool:
        """Whether a plan that differs in one thing from one that runs is predicted not to fit."""
        estimate = self.problem.estimate(self._plan(curve.combination, size))
        return estimate is not None and estimate.value_bytes > self.problem.memory_bytes

    # 3. promise

    def _promise(self, anchor: Curve) -> Plan | None:
        offers = self._offers(anchor, 1 + self.problem.objective.tie_ratio, daring=False)
        best = max(offers, key=lambda o: (o[0], -len(o[1].changes_from(self._space.baseline))), default=None)
        return None if best is None else best[1]

    def _dare(self, anchor: Curve) -> Plan | None:
        """Returns the plan nearest to fitting of those that would win clearly and were only guessed not to fit."""
        plans = [plan for _, plan in self._offers(anchor, DARE_GAIN, daring=True)]
        return min(plans, key=self._need, default=None)

    def _offers(self, anchor: Curve, gain: float, daring: bool) -> list[tuple[float, Plan]]:
        best = self._forecast.best()
        if best is None:
            return []
        least = best[0].scores[best[1]] * gain
        return [o for c in self._combinations if (o := self._offer(c, anchor, least, daring)) is not None]

    def _offer(self, combination: Plan, anchor: Curve, least: float, daring: bool) -> tuple[float, Plan] | None:
        """Returns the highest predicted throughput of a combination and the smallest size that nearly reaches it."""
        curve = self._forecast.curve(combination)
        neighbour = curve if curve.scores else self._forecast.nearest(combination)
        if curve.dead or neighbour is None:
            return None
        change = self._forecast.change(combination, neighbour.combination)
        if change is None:
            return None
        reach = JUMP * max(neighbour.scores)
        predicted = {s: change.speed * neighbour.score_at(s, anchor) for s in self._open(curve) if s <= reach}
        worth = {s: score for s, score in predicted.items() if score >= least}
        fitting = {s: score for s, score in worth.items() if self._fits(curve, s, daring)}
        if not fitting:
            return None
        top = max(fitting.values())
        size = min(s for s, score in fitting.items() if score >= top * (1 - self.problem.objective.tie_ratio / 2))
        return top, self._plan(combination, size)

    # 4. save

    def _save(self, anchor: Curve, reference: int) -> Plan | None:
        """Where memory keeps the best combination from a larger batch that would pay: what costs time may save memory.

        A change saves memory only where activations make the peak. Where they did not at the size of the comparison,
        what it saves was not seen, and the slowest changes are tried at the next larger size.
        """
        best = self._forecast.best()
        if best is None or anchor.grows_at(reference):
            return None
        curve, size = best
        above = [s for s in self._sizes(curve.combination) if s > size]
        target = max((s for s in above if s <= 2 * size), default=above[0] if above else size)
        gain = curve.score_at(target, anchor) / curve.scores[size]
        if self._fits(curve, target) or gain < 1 + self.problem.objective.tie_ratio:
            return None
        for speed, combination in self._costly(curve.combination, anchor.combination):
            other = self._forecast.curve(combination)
            untried = not any(s >= target for s in other.outcomes)
            if speed * gain > 1 and untried and not other.dead and not self._known_to_need_more(other, target):
                return self._plan(combination, target)
        return None

    def _costly(self, combination: Plan, anchor: Plan) -> list[tuple[float, Plan]]:
        """Returns the changes to values that were not faster than the anchor's own, as (throughput ratio, combination).

        The slowest come first; among equals those that a person would list last.
        """
        found: list[tuple[float, Plan]] = []
        for other in self._changes(combination):
            changed = other.changes_from(combination)
            if not anchor.changes_from(other).keys() & changed:
                continue  # back to the anchor's own value
            own = self._forecast.change(anchor.replace(**changed), anchor)
            change = self._forecast.change(other, combination)
            if own is not None and change is not None and own.speed <= 1:
                found.append((change.speed, other))
        return sorted(reversed(found), key=lambda pair: pair[0])

    def _known_to_need_more(self, curve: Curve, size: int) -> bool:
        """Whether sizes of the combination itself put this one over the budget."""
        estimate = self.problem.estimate(self._plan(curve.combination, size))
        return estimate is not None and (estimate.lower_bytes or 0) > self.problem.memory_bytes

    # 5. recheck

    def _recheck(self, anchor: Curve, reference: int) -> Plan | None:
        best = self._forecast.best()
        if best is None or best[1] < 2 * reference:
            return None
        curve, size = best
        near: list[tuple[float, Plan]] = []
        for combination in self._changes(curve.combination):
            change = self._forecast.change(combination, curve.combination)
            other = self._forecast.curve(combination)
            if change is None or change.speed < RECHECK_RATIO or other.dead:
                continue
            hidden = not anchor.grows_at(reference) and not self._known_to_need_more(other, size)
            if size in self._open(other) and (hidden or self._fits(other, size)):
                near.append((change.speed, self._plan(combination, size)))
        return max(near, key=lambda pair: pair[0])[1] if near else None

    # 6. refine

    def _refine(self) -> Plan | None:
        best = self._forecast.best()
        if best is None:
            return None
        curve, size = best
        above = [s for s in self._open(curve) if s > size and self._fits(curve, s)]
        measured_above = min((s for s in curve.scores if s > size), default=None)
        if measured_above is None and above:
            return self._plan(curve.combination, max((s for s in above if s <= 2 * size), default=above[0]))
        below = max((s for s in curve.scores if s < size), default=None)
        gaps = [(size, measured_above), (below, size)]
        for low, high in ((a, b) for a, b in gaps if a is not None and b is not None):
            middle = math.sqrt(low * high)
            inside = [s for s in self._open(curve) if low < s < high and self._fits(curve, s)]
            if inside and high >= 1.5 * low:
                return self._plan(curve.combination, min(inside, key=lambda s: abs(math.log(s / middle))))
        return None
