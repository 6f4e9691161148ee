"""TableEstimator: estimates memory from a table, with a chosen bias, error and delay."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.estimators.base import Estimator
from scripts.bench.search.replay.table import Entry, Table

REFUSED_RATIO = 1.05
"""Lower bound on the peak of a plan that did not fit, as a multiple of the budget."""


class TableEstimator(Estimator):
    """Estimates from known peaks; a plan that is not among them has no estimate.

    Args:
        peaks: true peak in bytes by the plan's key.
        factor: factor on the estimate, its bias.
        error_ratio: distance of the bounds from the estimate, as a share of it.
        at_once: whether every plan has an estimate from the start. Otherwise a plan has one after `refine`, as with
            traces.
    """

    def __init__(
        self, peaks: Mapping[str, int], factor: float = 1.0, error_ratio: float = 0.01, at_once: bool = True
    ) -> None:
        self._peaks, self._factor, self._error_ratio = peaks, factor, error_ratio
        self._at_once = at_once
        self._refined: set[str] = set()
        self._combinations: set[str] = set()

    def tell(self, trial: Trial) -> None:
        """Learns nothing, so that the effect of what corrects its error can be seen."""

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Gives a plan, and those along it, an estimate from now on."""
        self.refine_all((plan, *along))

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Gives the plans an estimate from now on."""
        self._refined.update(plan.key for plan in plans)
        self._combinations.update(plan.combination.key for plan in plans)

    def bounded(self) -> Collection[str] | None:
        """Returns the combinations with an estimate."""
        return None if self._at_once else self._combinations

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak times the bias, with bounds at the error ratio."""
        known = self._at_once or plan.key in self._refined
        peak = self._peaks.get(plan.key) if known else None
        if peak is None:
            return None
        value = peak * self._factor
        return Estimate(
            value_bytes=round(value),
            lower_bytes=round(value * (1 - self._error_ratio)),
            upper_bytes=round(value * (1 + self._error_ratio)),
            basis="table",
        )


def peaks_of(table: Table) -> dict[str, int]:
    """Returns the peak of each plan by its key.

    A plan that did not fit has no recorded peak. Its peak is extrapolated from the two largest smaller sizes of its
    combination that ran, and is above the budget. If fewer ran, the plan is left out.
    """

    def curve(entry: Entry) -> tuple[str, bool]:
        return entry.plan.combination.key, entry.plan.accumulation_steps > 1

    peaks: dict[str, int] = {}
    for _, group in groupby(sorted(table.entries, key=curve), key=curve):
        entries = list(group)
        ran = {e.plan.micro_batch_size: peak for e in entries if (peak := _peak(e)) is not None}
        for entry in entries:
            peak = ran.get(entry.plan.micro_batch_size)
            if peak is None and entry.outcome.status.does_not_fit:
                peak = _beyond(ran, entry.plan.micro_batch_size, round(REFUSED_RATIO * table.budget.memory_bytes))
            if peak is not None:
                peaks[entry.plan.key] = peak
    return peaks


def _peak(entry: Entry) -> int | None:
    return None if entry.outcome.measurement is None else entry.outcome.measurement.memory.judged_bytes


def _beyond(ran: Mapping[int, int], size: int, least: int) -> int | None:
    below = sorted(each for each in ran if each < size)[-2:]
    if len(below) < 2:
        return None
    small, large = below
    return max(ran[large] + (ran[large] - ran[small]) * (size - large) // (large - small), least)
