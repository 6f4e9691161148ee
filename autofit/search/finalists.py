"""Finalists: which plans race. The most promising come first, as many as can run enough rounds in the time left."""

from collections.abc import Sequence
from statistics import fmean

from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.choice import measurement_of, quotient
from autofit.search.common_scale import CommonScale
from autofit.search.race import MAX_ROUNDS, MIN_ROUNDS, Race
from autofit.search.trial_runner import TrialRunner

LATE_WORTH = 0.02
"""Expected gain over the leader, as a log ratio, from which a plan joins a running race: where the leader's probe was
too fast, faster plans were left out. Scored by scripts/bench/claims.py."""
MOST_LATE = 3
"""Maximum number of plans that join for this reason."""


class Finalists:
    """Selects the plans that begin a race and those that join it."""

    def __init__(self, runner: TrialRunner, measured: Sequence[Trial], scale: CommonScale) -> None:
        self._runner, self._measured, self._scale = runner, measured, scale
        self._baseline: list[Trial] = []
        self._rivals: list[Trial] = []
        self._blocks_s: list[float] = []
        self._late = 0

    def admit(self, finalists: Sequence[Trial]) -> None:
        """Sets the plans that may be the fastest by their probes, best first, and the baseline."""
        self._baseline = [t for t in finalists if t.plan == self._runner.baseline]
        rivals = [t for t in finalists if t.plan != self._runner.baseline]
        self._rivals = by_promise(rivals, self._runner.tuning.objective)

    def first(self) -> list[Trial]:
        """Returns the plans that begin: the best rival, the baseline, and others, as far as the time left goes."""
        room_s = self._room_s() / MIN_ROUNDS
        every = [*self._rivals, *self._baseline]
        costs_s = {t.plan.key: self._runner.ledger.block_s(measurement_of(t)) for t in every}
        chosen, spent_s = self._rivals[:1], sum(costs_s[t.plan.key] for t in self._rivals[:1])
        for trial in [*self._baseline, *self._rivals[1:]]:
            if spent_s + costs_s[trial.plan.key] <= room_s:
                chosen, spent_s = [*chosen, trial], spent_s + costs_s[trial.plan.key]
        rivals = [t for t in chosen if t not in self._baseline]
        return rivals + [t for t in chosen if t in self._baseline] if len(chosen) > 1 else []

    def ran(self, block_s: float) -> None:
        """Records the duration of a block, in seconds."""
        self._blocks_s.append(block_s)

    def shed(self, race: Race, round_s: float) -> float:
        """Removes the least promising plans until the minimum of rounds fits into the time left. Two stay.

        Args:
            race: after its first round, and before the last of the minimum. Otherwise nothing is removed.
            round_s: the longest round so far, in seconds.

        Returns:
            The same for the plans that stay.
        """
        while 0 < race.rounds < MIN_ROUNDS and len(race.running) > 2:
            rivals = [t.plan.key for t in self._rivals if t.plan.key in race.running]
            if len(rivals) < 2 or (MIN_ROUNDS - race.rounds) * round_s <= self._room_s():
                break
            round_s *= 1 - 1 / len(race.running)
            race.leave(rivals[-1], "no time for its rounds")
        return round_s

    def joining(self) -> list[Trial]:
        """Returns the plans that join now: finalists for which there was no time before, then others that may win."""
        race = self._scale.race
        if race is None or not race.rounds or not self._room_for_one_more(race):
            return []
        if waiting := [t for t in self._rivals if t.plan.key not in race.names]:
            return waiting[:1]
        if not race.running or not race.ripe or self._late >= MOST_LATE:
            return []
        found = self._promising(race)
        self._late += len(found)
        return found

    def _promising(self, race: Race) -> list[Trial]:
        leading = race.leader()
        leader = next(t for t in self._measured if t.plan.key == leading)
        left = [t for t in self._measured if t.plan.key not in race.names]
        if disturbed := [t for t in left if self._trades_less(t.plan, leader.plan)]:
            return disturbed[:1]
        promises = [(self._scale.promise(t, leader), -place, t) for place, t in enumerate(left)]
        worth, _, trial = max(promises, default=(0.0, 0, leader))
        return [trial] if worth > LATE_WORTH else []

    def _trades_less(self, plan: Plan, leader: Plan) -> bool:
        """Returns whether a plan is the leader with less recomputation: if its probe was slower, it was disturbed."""
        changes = plan.changes_from(leader)
        return len(changes) == 1 and any(
            knob.values.index(changes[knob.name]) < knob.values.index(leader.values[knob.name])
            for knob in self._runner.tuning.space.facts.knobs
            if knob.trades_memory is not None and knob.name in changes
        )

    def _room_for_one_more(self, race: Race) -> bool:
        needed_s = MIN_ROUNDS * (len(race.running) + 1) * fmean(self._blocks_s)
        return race.rounds + MIN_ROUNDS <= MAX_ROUNDS and needed_s <= self._room_s()

    def _room_s(self) -> float:
        return self._runner.ledger.left_s()


def by_promise(rivals: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Returns the plans by their expected gain over the one with the fastest probe, which comes first."""
    if not rivals:
        return []
    best, *others = rivals

    def worth(trial: Trial) -> float:
        return quotient(measurement_of(trial), measurement_of(best), objective).expected_gain

    return [best, *sorted(others, key=worth, reverse=True)]
