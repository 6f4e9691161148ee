"""TimePlan: the time left, the duration of runs, and the time that is kept for the race and the proof."""

import math
from collections.abc import Mapping
from statistics import median

from autofit.core.budget import SHARES
from autofit.core.trial import Purpose, Trial
from autofit.search.choice import finalists, measurement_of
from autofit.search.tuning import Tuning

RESERVE_PROBES = 12
"""Assumed duration of the race and the proof, in probes: 4 rounds of 3 short blocks, and the proof."""
PROOF_PROBES, PROOF_STEPS = 1.5, 10
"""Assumed duration of a proof, in probes and in steps; the longer one counts. Where steps are slow, a proof runs 10
steps, and 4 more in a process with limited memory; the step of another plan may be slower."""
RESERVE_RATIO = 0.5
"""Maximum share of the time budget that is kept for race and proof, once a second plan may win and a race is needed."""


class TimePlan:
    """The duration of runs, and the time left for them.

    Args:
        tuning: the arguments of the search, clock and budget among them.
        record: the latest trial of each plan, by its key; grows while the search runs.
    """

    def __init__(self, tuning: Tuning, record: Mapping[str, Trial]) -> None:
        self._tuning, self._record = tuning, record
        self._probes_s: list[float] = []
        self._first_s = self._last_s = 0.0

    def took(self, probe_s: float, warm_up_s: float = 0.0) -> None:
        """Records the duration of a probe, and how much of it was a warm-up that later runs of the plan do not have."""
        self._last_s = self._tuning.clock.elapsed_s
        if not self._probes_s:
            self._first_s = self._last_s - probe_s
        self._probes_s.append(max(probe_s - warm_up_s, 0.0))

    def left_s(self) -> float:
        """Returns the seconds left of the time budget, less the start of a proof; infinity without a budget."""
        limit = self._tuning.budget.time_s
        return math.inf if limit is None else limit - self._tuning.closing_s - self._tuning.clock.elapsed_s

    def probe_s(self) -> float:
        """Returns the median duration of a probe without its warm-up, in seconds; 0 before the first."""
        return median(self._probes_s) if self._probes_s else 0.0

    def proof_s(self) -> float:
        """Returns the estimated seconds of a proof, for the slowest plan that may win; 0 before any plan ran."""
        able = self._able()
        rivals = [t for t in able if t.plan != self._tuning.space.baseline] or able
        step_s = max((measurement_of(t).step_time_s for t in rivals), default=0.0)
        return max(PROOF_PROBES * self.probe_s(), PROOF_STEPS * step_s)

    def reserve_s(self) -> float:
        """Returns the seconds to keep for the proof and the next probe, and for a race once two plans may win it."""
        time_s, able = self._tuning.budget.time_s, self._able()
        if time_s is None or not able:
            return 0.0
        if len(able) < 2:
            return self.probe_s() + self.proof_s()
        return min(RESERVE_PROBES * self.probe_s(), RESERVE_RATIO * time_s)

    def patience_s(self) -> float:
        """Returns the seconds that a probe may take now, so that time is left for the race and the proof.

        `reserve_s` already holds the time of a probe of median duration.
        """
        left_s = self.left_s() - self.reserve_s() + self.probe_s()
        return min(self._tuning.clock.patience_s(SHARES[Purpose.PROBE]), left_s)

    def search_left_s(self, probes: int | None) -> float | None:
        """Returns the estimated seconds of this number of probes; None before the first probe.

        Each is counted at the mean time between probes so far, in which memory is estimated as well, or at the median
        duration of a probe if that is longer.
        """
        if probes is None or not self._probes_s:
            return None
        each_s = max((self._last_s - self._first_s) / len(self._probes_s), self.probe_s())
        return probes * each_s

    def hurried(self, purpose: Purpose, took_s: float) -> bool:
        """Returns whether a run of this duration could not be repeated in the time left."""
        return self.left_s() <= 0 or self._tuning.clock.patience_s(SHARES[purpose]) < took_s

    def _able(self) -> list[Trial]:
        """Returns the plans that may win by their probes; none before any that can be recommended was measured."""
        space = self._tuning.space
        measured = [t for t in self._record.values() if t.outcome.measured]
        if all(space.unpinned(t.plan) is not None for t in measured):
            return []
        return finalists(measured, space.baseline, self._tuning.objective)
