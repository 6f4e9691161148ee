"""Common scale: the throughput of every measured plan on one scale, so that two figures are never of two kinds.

Where there was a race that is its scale. What a plan's own probe said is then put on it by what the probes of those
that raced said of them: a probe is as much too fast or too slow as theirs were in the mean, give or take as much as
theirs differ. Without a race the probes are the scale, and a ratio of two of them says little on a machine that others
share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.recommendation import Ratio
from autofit.core.statistics import DEVIATIONS_95, clipped, expected_gain
from autofit.core.trial import Trial
from autofit.search.choice import PROBE_NOISE_RATIO, measurement_of, quotient
from autofit.search.contradiction import SPEED_RATIO
from autofit.search.race import MIN_ROUNDS, Race

DISTURBED_NOISE_RATIO = 0.15
"""Standard deviation of the ratio of two separate probes where nothing shows how calm the machine is: on a shared one a
probe was seen to be 31 % too fast (scripts/bench/claims.py)."""

CLAIM_RATIO = 1.12
"""What a race is claimed to have shown has an interval so many times as wide as one pair of plans alone would have: a
race ends when it seems decided, and the best of several is what is reported. Scored by scripts/bench/claims.py: without
it 90 % of the claims hold where time has no limit."""


class CommonScale:
    """What probes and race say together.

    Args:
        objective: what is maximised.
        measured: trials of the plans that were measured, the latest of each.

    Attributes:
        race: the race, once there is one.
    """

    def __init__(self, objective: Objective, measured: Sequence[Trial]) -> None:
        self._objective = objective
        self._probe_logs = {t.plan.key: math.log(objective.score(measurement_of(t))) for t in measured}
        self.race: Race | None = None
        self._scale = Scale({}, 0.0, 0.0)
        self._at: tuple[int, int] | None = None

    def raced(self, trial: Trial) -> bool:
        """Says whether a plan ran enough rounds to be compared with the others that did."""
        return trial.plan.key in self._now().logs

    @property
    def decided_by_race(self) -> bool:
        """Whether there was a race that tells anything; otherwise all figures are those of probes."""
        return bool(self._now().logs)

    def ratio(self, ours: Trial, theirs: Trial) -> Ratio:
        """Returns the throughput of the first over the second, with `pairs` 0 unless both raced."""
        if ours.plan == theirs.plan:
            return Ratio(value=1.0, low=1.0, high=1.0, pairs=self.race.rounds if self.race is not None else 0)
        if self.race is None or not self.decided_by_race:
            return quotient(measurement_of(ours), measurement_of(theirs), self._objective, DISTURBED_NOISE_RATIO)
        pairing = self.race.pairing(ours.plan.key, theirs.plan.key)
        if pairing is not None:
            return pairing.ratio()
        log = self._log(ours) - self._log(theirs)
        half = DEVIATIONS_95 * math.hypot(self._deviation(ours), self._deviation(theirs))
        return Ratio(value=math.exp(log), low=math.exp(log - half), high=math.exp(log + half))

    def claim(self, ours: Trial, theirs: Trial) -> Ratio:
        """Returns the ratio as it is told to a person: with an interval that holds after a race (`CLAIM_RATIO`)."""
        ratio = self.ratio(ours, theirs)
        return ratio.widened(CLAIM_RATIO) if ratio.pairs else ratio

    def rate_per_s(self, trial: Trial) -> float:
        """Returns the throughput of a plan on the common scale, in the objective's unit."""
        return math.exp(self._log(trial))

    def doubt_of_proof(self, trial: Trial, proof: Measurement) -> str:
        """Returns how the proof of a plan contradicts the throughput that is shown for it; "" where it does not."""
        shown, proven, unit = self.rate_per_s(trial), self._objective.score(proof), self._objective.unit
        if proof.of_worst_batch or max(shown, proven) <= SPEED_RATIO * min(shown, proven):
            return ""
        return (
            f"the proof ran at {proven:.4g} {unit}/s, where {shown:.4g} are shown: something else used this machine "
            "meanwhile, and the gain may be off by as much. Tune again when it is quiet"
        )

    def promise(self, trial: Trial, leader: Trial) -> float:
        """Returns the log throughput that a plan which did not race is expected to gain over one that did.

        Counted as nothing where it loses.
        """
        return expected_gain(self._log(trial) - self._log(leader), self._deviation(trial))

    def _log(self, trial: Trial) -> float:
        scale, key = self._now(), trial.plan.key
        if key in scale.logs:
            return scale.logs[key]
        return math.log(self._objective.score(measurement_of(trial))) - scale.shift

    def _deviation(self, trial: Trial) -> float:
        """Returns the standard error of a log throughput that rests on a probe; 0 of one that rests on the race."""
        return 0.0 if self.raced(trial) else math.hypot(self._now().doubt, measurement_of(trial).spread_ratio)

    def _now(self) -> "Scale":
        """Returns the scale; worked out anew once a race went on."""
        race = self.race
        if race is not None and self._at != (race.rounds, len(race.names)):
            self._at = (race.rounds, len(race.names))
            self._scale = scale_of(race, self._probe_logs)
        return self._scale


@dataclass(frozen=True, slots=True)
class Scale:
    """The scale of a race.

    Attributes:
        logs: log throughput of the plans that ran enough rounds.
        shift: how much higher a probe is than the race would be.
        doubt: the standard deviation of that, for one plan.
    """

    logs: dict[str, float]
    shift: float
    doubt: float


def scale_of(race: Race, probe_logs: Mapping[str, float]) -> Scale:
    """Returns the scale of a race; without plans where no two ran enough rounds together.

    All are compared with the same opponent: the pinned plan, or else who ran the most rounds.
    """
    ripe = [name for name in race.names if len(race.logs[name]) >= MIN_ROUNDS]
    if len(ripe) < 2:
        return Scale({}, 0.0, 0.0)
    opponent = max(ripe, key=lambda name: (name == race.pinned, len(race.logs[name])))
    level = fmean(clipped(race.logs[opponent]))
    pairings = {name: race.pairing(name, opponent) for name in ripe}
    logs = {name: level + pairing.log_ratio for name, pairing in pairings.items() if pairing is not None}
    misses = [probe_logs[name] - log for name, log in logs.items()]
    seen = max(pstdev(misses), PROBE_NOISE_RATIO)
    return Scale(logs, fmean(misses), math.hypot(seen, seen / math.sqrt(len(misses))))
