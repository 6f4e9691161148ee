"""Race: interleaved blocks of a few plans, and the rule by which a plan leaves. Statistics only."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from autofit.core.answer import Ratio
from autofit.core.objective import TIE_RATIO
from autofit.core.statistics import DEVIATIONS_95, clipped

MIN_ROUNDS = 4
"""Minimum number of pairs of blocks for a decision (source of the constants here: reference/reliability.md 9.3)."""
MAX_ROUNDS = 40
"""Maximum number of rounds. Of two plans 5 % apart, the slower one wins in under 5 % of races after 12 rounds with the
noise recorded in tests/data/tables, after 16 on a disturbed machine, and in up to 21 % after 4
(tests/search/test_race_error_rates.py)."""
TIE_ROUNDS = 12
"""Number of rounds after which a plan leaves if it is at most two tie margins away from the leader."""
STANDARD_ERRORS = 2.5
"""Standard errors by which a log ratio must differ from 0 for a plan to be slower beyond the noise, for a normal
distribution. Student's t widens this for few pairs, by a factor of 1.9 for 4. One of two equal plans is then called
slower in 4 to 15 % of races on recorded noise: more than in a single test, since every round tests again."""
WIDE_LOG = math.log(1.1)
"""Half width of the 95 % interval of the gain over the pinned plan, as a log ratio. A decided race with a wider one
continues, because the gain is what a person reads, and "8x (3 to 22)" says little. Where the ratio of two blocks varies
by less than 7 %, it is narrower after 4 rounds."""
_FLOOR_LOG = 1e-6


@dataclass(frozen=True, slots=True)
class Pairing:
    """Comparison of two plans, from blocks that ran next to each other.

    Attributes:
        log_ratio: log of the throughput ratio.
        error: standard error of `log_ratio`.
        pairs: number of pairs of blocks.
    """

    log_ratio: float
    error: float
    pairs: int

    @property
    def surely_above(self) -> bool:
        """Whether the first plan is faster beyond the noise."""
        return self.log_ratio - self._margin(STANDARD_ERRORS) > 0

    @property
    def upper(self) -> float:
        """Log of the largest throughput ratio that the noise allows."""
        return self.log_ratio + self._margin(STANDARD_ERRORS)

    def followed_by(self, other: "Pairing") -> "Pairing":
        """Returns the comparison of the first plan with what its opponent is compared with in `other`."""
        log_ratio, error = self.log_ratio + other.log_ratio, math.hypot(self.error, other.error)
        return Pairing(log_ratio, error, min(self.pairs, other.pairs))

    def ratio(self) -> Ratio:
        """Returns the throughput ratio with its 95 % interval."""
        return Ratio(
            value=math.exp(self.log_ratio),
            low=math.exp(self.log_ratio - self.half),
            high=math.exp(self.log_ratio + self.half),
            pairs=self.pairs,
        )

    @property
    def half(self) -> float:
        """Half the width of the 95 % interval of `log_ratio`."""
        return self._margin(DEVIATIONS_95)

    def _margin(self, errors: float) -> float:
        """Returns the margin of this many standard errors, widened for few pairs."""
        # Student's t by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5, two terms).
        z, df = errors, max(self.pairs - 1, 1)
        return self.error * (z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2))


def pair(ours: Sequence[float], theirs: Sequence[float]) -> Pairing:
    """Returns the comparison of two lists of log throughputs of the same rounds.

    The location is the mean of the pairs, with outliers clipped. On recorded noise it is as exact as the median, and
    its standard error is known.

    Raises:
        ValueError: fewer than two common rounds.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=False)]
    if len(differences) < 2:
        raise ValueError(f"a comparison needs at least two pairs of blocks, found {len(differences)}")
    near = clipped(differences)
    mean = fmean(near)
    variance = sum((d - mean) ** 2 for d in near) / (len(near) - 1)
    return Pairing(mean, math.sqrt(variance / len(near)) + _FLOOR_LOG, len(near))


@dataclass(slots=True)
class Race:
    """The state of a race.

    Attributes:
        names: plans that started, and those that joined later.
        pinned: the plan that never leaves, so that every plan has a ratio to it (the baseline); None for no plan.
        tie_ratio: relative difference that need not be separated.
        logs: log throughput of each block by name, one for each round since the name joined.
        joined: round in which a name joined; names that started are absent.
        left: reason why a plan no longer runs, by name.
        rounds: number of complete rounds.
    """

    names: tuple[str, ...]
    pinned: str | None = None
    tie_ratio: float = TIE_RATIO
    logs: dict[str, list[float]] = field(init=False)
    joined: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    _settled: bool = False

    def __post_init__(self) -> None:
        self.logs = {name: [] for name in self.names}

    @property
    def running(self) -> list[str]:
        """The names that still run."""
        return [name for name in self.names if name not in self.left]

    @property
    def contenders(self) -> list[str]:
        """The names that still run, without a pinned plan that is known to be slower than the leader."""
        if self.pinned is None or self.pinned not in self.running or not self._ripe(self.pinned):
            return self.running
        leader = self.leader()
        if leader == self.pinned or not pair(*self._common(leader, self.pinned)).surely_above:
            return self.running
        return [name for name in self.running if name != self.pinned]

    @property
    def ripe(self) -> bool:
        """Whether every plan that still runs has run the rounds that a decision needs."""
        return all(self._ripe(name) for name in self.running)

    def join(self, name: str) -> None:
        """Adds a plan from the next round on."""
        self.names = (*self.names, name)
        self.logs[name], self.joined[name] = [], self.rounds
        self._settled = False

    def order(self) -> list[str]:
        """Returns the names of the next round: forward and backward in turn (A B, B A), so that drift cancels."""
        return self.running[::-1] if self.rounds % 2 else self.running

    def leave(self, name: str, reason: str) -> None:
        """Removes a plan, even the pinned one."""
        self.left[name] = reason

    def leader(self) -> str:
        """Returns the fastest plan that still runs, by pairs, so that what a round slows for all plans has no effect.

        A plan that has just joined does not lead yet.

        Raises:
            ValueError: there are fewer than two rounds, or no plan runs.
        """
        first, *others = [name for name in self.running if self._ripe(name)] or self.running
        for name in others:
            if pair(*self._common(name, first)).log_ratio > 0:
                first = name
        return first

    def add(self, scores: Mapping[str, float]) -> None:
        """Adds a round, the throughput of each name that still runs. Then removes the plans that are decided."""
        for name, score in scores.items():
            self.logs[name].append(math.log(score))
        self.rounds += 1
        if self.rounds < MIN_ROUNDS or len(self.running) < 2 or not any(map(self._ripe, self.running)):
            return
        leader = self.leader()
        decided = {n: self._decided(leader, n) if self._ripe(n) else None for n in self.running if n != leader}
        self._settled = all(reason is not None for reason in decided.values())
        self.left |= {name: why for name, why in decided.items() if why is not None and name != self.pinned}

    @property
    def over(self) -> bool:
        """Whether another round could change nothing and the gain is known well, or the rounds are spent."""
        return (self.decided and not self.wide) or self.rounds >= MAX_ROUNDS

    @property
    def wide(self) -> bool:
        """Whether the interval of the leader's gain over the pinned plan is wide (`WIDE_LOG`), and both still run."""
        running = self.running
        if self.pinned is None or self.pinned not in running or len(running) < 2:
            return False
        leader = self.leader()
        return leader != self.pinned and pair(*self._common(leader, self.pinned)).half > WIDE_LOG

    @property
    def decided(self) -> bool:
        """Whether each plan is known to be slower than the leader, or tied with it."""
        return self._settled or len(self.running) < 2

    def _decided(self, leader: str, name: str) -> str | None:
        pairing = pair(*self._common(leader, name))
        if pairing.surely_above:
            return "slower in the race"
        if pairing.pairs >= TIE_ROUNDS and pairing.upper < math.log1p(2 * self.tie_ratio):
            return "tied in the race"
        return None

    def pairing(self, ours: str, theirs: str) -> Pairing | None:
        """Returns the comparison over the rounds that both plans ran, or None if they are too few for a decision.

        Two plans did not run together if one left before the other joined. They are compared through the common
        opponent that gives the smallest error.
        """
        if (direct := self._direct(ours, theirs)) is not None:
            return direct
        found = []
        for opponent in self.names:
            first, second = self._direct(ours, opponent), self._direct(opponent, theirs)
            if first is not None and second is not None:
                found.append(first.followed_by(second))
        return min(found, key=lambda pairing: pairing.error, default=None)

    def _direct(self, ours: str, theirs: str) -> Pairing | None:
        common = self._common(ours, theirs)
        return pair(*common) if len(common[0]) >= MIN_ROUNDS else None

    def _common(self, ours: str, theirs: str) -> tuple[list[float], list[float]]:
        """Returns the logs of the rounds that both ran."""
        began = max(self.joined.get(ours, 0), self.joined.get(theirs, 0))
        first, second = (self.logs.get(name, [])[began - self.joined.get(name, 0) :] for name in (ours, theirs))
        count = min(len(first), len(second))
        return first[:count], second[:count]

    def _ripe(self, name: str) -> bool:
        return len(self.logs[name]) >= MIN_ROUNDS


def run_race(
    race: Race,
    block: Callable[[str], float | str],
    enough: Callable[[], bool],
    joining: Callable[[], Sequence[str]] = tuple,
    late: Callable[[], bool] = lambda: False,
) -> None:
    """Runs rounds until the race is over, or `enough()` or `late()` returns True.

    `block` runs one block of the plan with this name and returns its throughput, or the reason of a failure. Before
    every round, `joining` returns the names that join, then `enough` is called; `late` before every block but the
    first of a round, which is then given up.
    """
    while True:
        for name in joining():
            race.join(name)
        if race.over or enough():
            return
        scores: dict[str, float] = {}
        for at, name in enumerate(race.order()):
            if at and late():
                return
            result = block(name)
            if isinstance(result, str):
                race.leave(name, result)
            else:
                scores[name] = result
        race.add(scores)
