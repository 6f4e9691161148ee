"""Race: interleaved blocks of a few plans, and when one of them may leave. Statistics only."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

from autofit.core.objective import TIE_RATIO
from autofit.core.recommendation import Ratio

MIN_ROUNDS = 4
"""No decision rests on fewer pairs of blocks (this and the next three: reference/reliability.md 9.3)."""
MAX_ROUNDS = 40
TIE_ROUNDS = 12
"""From here on a plan leaves that cannot be more than two tie margins from the leader."""
STANDARD_ERRORS = 2.5
CLIP_LOG = 0.5
"""A pair further than this from the median pair counts as this far: one stall must not decide."""
_FLOOR_LOG = 1e-6
_MEAN_PAIRS = 7


@dataclass(frozen=True, slots=True)
class Pairing:
    """One plan against another, from blocks that ran next to each other.

    Attributes:
        log_ratio: log of the throughput ratio.
        error: its standard error.
        pairs: how many pairs it rests on.
    """

    log_ratio: float
    error: float
    pairs: int

    @property
    def surely_above(self) -> bool:
        """Whether the first plan is faster beyond the noise."""
        return self.log_ratio - STANDARD_ERRORS * self.error > 0

    def ratio(self) -> Ratio:
        """Returns the throughput ratio with its 95 % interval (Student's t, Cornish-Fisher expansion)."""
        z, df = 1.96, max(self.pairs - 1, 1)
        t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        half = t * self.error
        return Ratio(
            value=math.exp(self.log_ratio),
            low=math.exp(self.log_ratio - half),
            high=math.exp(self.log_ratio + half),
            pairs=self.pairs,
        )


def pair(ours: Sequence[float], theirs: Sequence[float]) -> Pairing:
    """Returns the comparison of two lists of log throughputs, the same rounds at the same places.

    The location is the mean up to 7 pairs and the median beyond.

    Raises:
        ValueError: fewer than two common rounds.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=False)]
    if len(differences) < 2:
        raise ValueError(f"a comparison needs two pairs of blocks at least, found {len(differences)}")
    middle = median(differences)
    clipped = [min(max(d, middle - CLIP_LOG), middle + CLIP_LOG) for d in differences]
    error = stdev(clipped) / math.sqrt(len(clipped)) + _FLOOR_LOG
    return Pairing(middle if len(clipped) > _MEAN_PAIRS else fmean(clipped), error, len(clipped))


@dataclass(slots=True)
class Race:
    """The state of a race.

    Attributes:
        names: who started.
        pinned: never leaves, so that everyone has a ratio to it (the user's own setting); None for nobody.
        tie_ratio: relative difference that is not worth separating.
        logs: log throughput of each block by name, in rounds.
        left: why a plan no longer runs, by name.
    """

    names: tuple[str, ...]
    pinned: str | None = None
    tie_ratio: float = TIE_RATIO
    logs: dict[str, list[float]] = field(init=False)
    left: dict[str, str] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.logs = {name: [] for name in self.names}

    @property
    def running(self) -> list[str]:
        """The names that still run."""
        return [name for name in self.names if name not in self.left]

    def order(self) -> list[str]:
        """Returns who runs in the next round: forward and backward in turn (A B, B A), so that drift cancels."""
        return self.running[::-1] if self.rounds % 2 else self.running

    def fail(self, name: str, reason: str) -> None:
        """Takes out a plan whose block failed, the pinned one too."""
        self.left[name] = reason

    def leader(self) -> str:
        """Returns the fastest of those that still run."""
        return max(self.running, key=lambda name: median(self.logs[name]))

    def add(self, scores: Mapping[str, float]) -> None:
        """Adds a round: the throughput of each name that still runs. Then lets go who has no more to say."""
        for name, score in scores.items():
            self.logs[name].append(math.log(score))
        self.rounds += 1
        if self.rounds < MIN_ROUNDS or len(self.running) < 2:
            return
        leader = self.leader()
        for name in self.running:
            reason = None if name in (leader, self.pinned) else self._decided(leader, name)
            if reason is not None:
                self.left[name] = reason

    @property
    def over(self) -> bool:
        """Whether another round could change nothing, or the rounds are spent."""
        if len(self.running) < 2 or self.rounds >= MAX_ROUNDS:
            return True
        if self.rounds < MIN_ROUNDS:
            return False
        leader = self.leader()
        return all(name == leader or self._decided(leader, name) is not None for name in self.running)

    def _decided(self, leader: str, name: str) -> str | None:
        pairing = pair(self.logs[leader], self.logs[name])
        if pairing.surely_above:
            return "slower in the race"
        widest = pairing.log_ratio + STANDARD_ERRORS * pairing.error
        if self.rounds >= TIE_ROUNDS and widest < math.log1p(2 * self.tie_ratio):
            return "tied in the race"
        return None

    def pairing(self, ours: str, theirs: str) -> Pairing | None:
        """Returns the comparison over the rounds that both ran, or None when they are too few to decide anything."""
        common = min(len(self.logs.get(ours, ())), len(self.logs.get(theirs, ())))
        return pair(self.logs[ours], self.logs[theirs]) if common >= MIN_ROUNDS else None


def run_race(race: Race, block: Callable[[str], float | str], enough: Callable[[], bool]) -> None:
    """Runs rounds until the race is over or `enough()` says that time is.

    Args:
        race: changed in place.
        block: runs one block of the plan of this name; returns its throughput, or why it failed.
        enough: asked before every round.
    """
    while not race.over and not enough():
        scores: dict[str, float] = {}
        for name in race.order():
            result = block(name)
            if isinstance(result, str):
                race.fail(name, result)
            else:
                scores[name] = result
        race.add(scores)
