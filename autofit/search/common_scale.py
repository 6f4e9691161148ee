"""Common scale: the throughput of every measured plan on one scale, so that all figures are comparable.

After a race, this is the scale of the race. The probe of a plan that did not race is moved to it by the difference
between probe and race of the winner, so that its ratio to the winner is that of their probes; while the race lasts, by
the mean difference over the plans that raced. The spread of that difference is its uncertainty. Without a race the
probes are the scale, and on a shared machine a ratio of two probes has a wide interval.

Contradiction: two measurements of one plan whose difference noise cannot explain: something has changed.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median, pstdev
from typing import NamedTuple

from autofit.core.answer import Ratio
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.statistics import DEVIATIONS_95, clipped, expected_gain
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, short_number
from autofit.search.choice import DISTURBED_NOISE_RATIO, PROBE_NOISE_RATIO, measurement_of, quotient
from autofit.search.race import MIN_ROUNDS, Race

SPEED_RATIO = 1.5
"""Ratio up to which two whole runs differ on a shared machine, beyond the spread of their steps."""
MEMORY_RATIO, MEMORY_BYTES = 1.25, 64 * 2**10
"""Ratio and bytes up to which the live tensors of one plan differ: by workspaces that a library chooses and tables that
are made once. Everything else is repeatable."""
NEAR_RATIO = 0.9
"""Share of the budget above which a plan may fit at one time and not at another."""


def contradiction(
    then: Outcome, now: Outcome, objective: Objective, memory_bytes: int, blocks: Sequence[Measurement] = ()
) -> str:
    """Returns the difference beyond the noise, in words; "" if there is none, or if the two cannot be compared.

    The outcomes are those of a plan in the study and in this run, under one budget. Of the `blocks` of a race, of which
    `now` is the last, the median counts. The peak of live tensors is not compared (`other_peak`).
    """
    old, new = then.measurement, now.measurement
    if old is None or new is None:  # it fits now and did not before, or the other way round, unless it is close
        ran, other = (then, now) if then.status is Status.MEASURED else (now, then)
        if ran.measurement is None or ran.status is not Status.MEASURED or not other.status.does_not_fit:
            return ""
        near = ran.measurement.memory.judged_bytes > NEAR_RATIO * memory_bytes
        return "" if near else f"{now.status.value}, was {then.status.value}"
    old, new = (found.model_copy(update={"new_shape_s": 0.0}) for found in (old, new))  # a block has none
    objective = objective.model_copy(update={"planned_samples": None})  # steady steps only, without the warm-up
    middle = median(objective.score(block) for block in blocks) if blocks else objective.score(new)
    ratio = quotient(new, old, objective)
    value, noise = middle / objective.score(old), ratio.high / ratio.value
    if abs(math.log(value)) <= math.log(noise * SPEED_RATIO):
        return ""
    return f"{short_number(middle)} {objective.unit}/s, was {short_number(objective.score(old))}"


def proof_contradicts(proof: Measurement, proven_per_s: float, shown_per_s: float) -> bool:
    """Returns whether the throughput of a proof contradicts the one that is shown for its plan.

    A proof that ran the worst batch only is not compared.
    """
    low, high = sorted((shown_per_s, proven_per_s))
    return high > SPEED_RATIO * low and not proof.of_worst_batch


def other_peak(then: Outcome, now: Outcome) -> str:
    """Returns the difference of the peaks of live tensors, in words; "" if there is none.

    They do not depend on what else the machine does: with another peak, it is another workload.
    """
    if then.measurement is None or now.measurement is None:
        return ""
    was, found = then.measurement.memory.allocated_bytes, now.measurement.memory.allocated_bytes
    if abs(found - was) <= MEMORY_BYTES or max(found, was) <= MEMORY_RATIO * min(found, was):
        return ""
    return f"a peak of {format_bytes(found)} of live tensors, was {format_bytes(was)}"


CLAIM_RATIO = 1.12
"""Factor on the width of the interval that is reported after a race. A race ends when it looks decided, and the best of
several plans is reported, so the interval of a single pair is too narrow: without the factor, 90 % of the claims hold
if time has no limit. Scored by scripts/bench/claims.py."""


class Scale(NamedTuple):
    """The scale of a race; without plans if no two ran enough rounds together.

    Attributes:
        logs: log throughput of the plans that ran enough rounds, by name.
        shift: log throughput in a probe less that in the race: of the anchor, else the mean over the plans that raced.
        doubt: standard deviation of that difference for a single plan.
    """

    logs: dict[str, float]
    shift: float
    doubt: float


NO_SCALE = Scale({}, 0.0, 0.0)


class CommonScale:
    """Throughput of all measured plans from probes and race.

    Attributes:
        race: the race, once it has begun.
    """

    def __init__(
        self, objective: Objective, measured: Sequence[Trial], noise_ratio: float = DISTURBED_NOISE_RATIO
    ) -> None:
        self._objective, self._noise_ratio = objective, noise_ratio
        self._probe_logs = {t.plan.key: math.log(objective.score(measurement_of(t))) for t in measured}
        self.race: Race | None = None
        self._scale = NO_SCALE
        self._at: tuple[int, int] | None = None
        self._anchor: str | None = None

    def anchor(self, winner: Trial) -> None:
        """Relates all figures to a plan that raced, so that none that it beat shows a higher one.

        A plan that left the race early met other rounds than the plans that stayed. What it reached beside the baseline
        in these rounds may be more than what the winner reached beside it in all.
        """
        self._anchor, self._at = winner.plan.key, None

    def raced(self, trial: Trial) -> bool:
        """Returns whether a plan ran enough rounds to be compared with others that did."""
        return trial.plan.key in self._now().logs

    @property
    def decided_by_race(self) -> bool:
        """Whether a race had enough rounds; otherwise all figures are those of probes."""
        return bool(self._now().logs)

    def ratio(self, ours: Trial, theirs: Trial) -> Ratio:
        """Returns the throughput of the first over the second, with `pairs` 0 unless both raced."""
        if ours.plan == theirs.plan:
            return Ratio(value=1.0, low=1.0, high=1.0, pairs=self.race.rounds if self.race is not None else 0)
        race, shift = self.race, self._now().shift
        if race is None or not self.decided_by_race:
            return quotient(measurement_of(ours), measurement_of(theirs), self._objective, self._noise_ratio)
        pairing = race.pairing(ours.plan.key, theirs.plan.key)
        if self._anchor is not None and self._anchor not in (ours.plan.key, theirs.plan.key):
            first, second = race.pairing(ours.plan.key, self._anchor), race.pairing(self._anchor, theirs.plan.key)
            if first is not None and second is not None:  # as both compare with the anchor
                pairing = first.followed_by(second)
        if pairing is not None:
            return pairing.ratio()
        log = self._log(ours) - self._log(theirs)
        half = DEVIATIONS_95 * math.hypot(self._deviation(ours, shift), self._deviation(theirs, shift))
        return Ratio(value=math.exp(log), low=math.exp(log - half), high=math.exp(log + half))

    def claim(self, ours: Trial, theirs: Trial) -> Ratio:
        """Returns the ratio as it is reported: with an interval that holds after a race (`CLAIM_RATIO`)."""
        ratio = self.ratio(ours, theirs)
        return ratio.widened(CLAIM_RATIO) if ratio.pairs else ratio

    def rate_per_s(self, trial: Trial) -> float:
        """Returns the throughput of a plan on the common scale, in the objective's unit."""
        return math.exp(self._log(trial))

    def doubt_of_proof(self, trial: Trial, proof: Measurement) -> str:
        """Returns how the proof of a plan contradicts the throughput that is shown for it; "" if it does not."""
        shown, proven, unit = self.rate_per_s(trial), self._objective.score(proof), self._objective.unit
        if not proof_contradicts(proof, proven, shown):
            return ""
        gain = "these figures may be off by as much" if self.raced(trial) else "no gain is reported"
        return (
            f"the proof ran at {short_number(proven)} {unit}/s, but {short_number(shown)} are shown: probably "
            f"something else used this machine meanwhile, and {gain}. Tune again when the machine is idle"
        )

    def promise(self, trial: Trial, leader: Trial) -> float:
        """Returns the expected gain in log throughput of a plan that did not race over one that did.

        A loss counts as zero.
        """
        return expected_gain(self._log(trial) - self._log(leader), self._deviation(trial))

    def _log(self, trial: Trial) -> float:
        scale, key = self._now(), trial.plan.key
        if key in scale.logs:
            return scale.logs[key]
        return math.log(self._objective.score(measurement_of(trial))) - scale.shift

    def _deviation(self, trial: Trial, shift: float = 0.0) -> float:
        """Returns the standard error of a log throughput: that of a probe, or 0 for a plan that raced."""
        # Reported ones include the `shift`: where the machine has changed its speed between the probes and the race, a
        # plan that did not race may have run before or after that.
        if self.raced(trial):
            return 0.0
        return math.hypot(self._now().doubt, measurement_of(trial).spread_ratio, shift)

    def _now(self) -> Scale:
        """Returns the scale; computed again after each round of the race."""
        race = self.race
        if race is None or self._at == (race.rounds, len(race.names)):
            return self._scale
        self._at, self._scale = (race.rounds, len(race.names)), NO_SCALE
        ripe = [name for name in race.names if len(race.logs[name]) >= MIN_ROUNDS]
        if len(ripe) < 2:
            return self._scale
        # All are compared with the same opponent: the anchor, or else the pinned plan, or the one with the most rounds.
        opponent = max(ripe, key=lambda name: (name == self._anchor, name == race.pinned, len(race.logs[name])))
        level = fmean(clipped(race.logs[opponent]))
        pairings = {name: race.pairing(name, opponent) for name in ripe}
        logs = {name: level + pairing.log_ratio for name, pairing in pairings.items() if pairing is not None}
        differences = {name: self._probe_logs[name] - log for name, log in logs.items()}
        spread = max(pstdev(differences.values()), PROBE_NOISE_RATIO)
        shift = differences[self._anchor] if self._anchor in differences else fmean(differences.values())
        self._scale = Scale(logs, shift, math.hypot(spread, spread / math.sqrt(len(differences))))
        return self._scale
