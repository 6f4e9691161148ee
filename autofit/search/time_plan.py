"""TimePlan: what is left of the time budget, how long runs take, and what is kept for the race and the proof."""

import math
from collections.abc import Mapping
from statistics import median

from autofit.core.budget import SHARES
from autofit.core.trial import Purpose, Trial
from autofit.search.choice import finalists, measurement_of
from autofit.search.tuning import Tuning

RESERVE_PROBES = 12
"""The race and the proof are taken to last as long as this many probes: 4 rounds of 3 short blocks, and the proof."""
PROOF_PROBES, PROOF_STEPS = 1.5, 10
"""A proof is taken to last as long as this many probes, or steps: where steps are slow it is cut to 5, and 4 more in a
process with limited memory, and one of another plan may be slower."""
RESERVE_RATIO = 0.5
"""At most this share of the time budget is kept for them, once a second plan may win: without one there is no race."""


class TimePlan:
    """How long runs take, and what time is left for them.

    Args:
        tuning: knows the clock and the budget.
        record: the latest trial of each plan, by its key; grows while the search runs.
    """

    def __init__(self, tuning: Tuning, record: Mapping[str, Trial]) -> None:
        self._tuning, self._record = tuning, record
        self._probes_s: list[float] = []

    def took(self, probe_s: float) -> None:
        """Learns how long a probe took, in seconds."""
        self._probes_s.append(probe_s)

    def left_s(self) -> float:
        """Returns the seconds left of the time budget, without what closing takes; infinity without a budget."""
        limit = self._tuning.budget.time_s
        return math.inf if limit is None else limit - self._tuning.closing_s - self._tuning.clock.elapsed_s

    def probe_s(self) -> float:
        """Returns the seconds that a probe takes, from those that ran; 0 before the first."""
        return median(self._probes_s) if self._probes_s else 0.0

    def proof_s(self) -> float:
        """Returns the seconds that a proof takes, whichever of the plans that may win is proven; 0 before any ran."""
        able = self._able()
        rivals = [t for t in able if t.plan != self._tuning.space.baseline] or able
        step_s = max((measurement_of(t).step_time_s for t in rivals), default=0.0)
        return max(PROOF_PROBES * self.probe_s(), PROOF_STEPS * step_s)

    def reserve_s(self) -> float:
        """Returns the seconds to keep: for the proof and the next probe, and for a race once two plans may win it."""
        time_s, able = self._tuning.budget.time_s, self._able()
        if time_s is None or not able:
            return 0.0
        if len(able) < 2:
            return self.probe_s() + self.proof_s()
        return min(RESERVE_PROBES * self.probe_s(), RESERVE_RATIO * time_s)

    def patience_s(self) -> float:
        """Returns the seconds that a probe may take now, and leave time for the race and the proof.

        Time for a probe that takes no longer than others did is kept already (`reserve_s`).
        """
        left_s = self.left_s() - self.reserve_s() + self.probe_s()
        return min(self._tuning.clock.patience_s(SHARES[Purpose.PROBE]), left_s)

    def hurried(self, purpose: Purpose, took_s: float) -> bool:
        """Returns whether a run that took so long could not be run again in what is left."""
        return self.left_s() <= 0 or self._tuning.clock.patience_s(SHARES[purpose]) < took_s

    def _able(self) -> list[Trial]:
        """Returns the plans that may win by what is known; none before any was measured."""
        measured = [t for t in self._record.values() if t.outcome.measured]
        return finalists(measured, self._tuning.space.baseline, self._tuning.objective) if measured else []
