"""Compares traces with measurements: the estimates for plans of a recorded grid, before and after one probe.

A trace runs nothing on the device, but it uses tensors of the device's type, so the device must be present. The
correcting probe is the one that every search begins with: the baseline.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from autofit.core.account import Account
from autofit.core.estimate import Estimate
from autofit.core.trial import Purpose, Trial
from autofit.estimators import Traced, Tracer
from scripts.bench.search.replay.table import Entry, Table

REQUIRED = {"before": 0.03, "after": 0.015}
"""Largest allowed error of an estimated footprint, before and after one probe has corrected the estimate."""


def score(tracer: Tracer, account: Account, trials: Sequence[Trial], table: Table, count: int) -> dict[str, Any]:
    """Returns the errors of estimates for `count` plans of `table`, before and after a probe.

    Args:
        tracer: traces a plan of the table's workload on the table's device.
        account: memory account of that device.
        trials: trials of a search, in order; the first measured probe corrects the estimates.
        table: recorded table with the measured peaks.
        count: number of plans to compare, spread from the smallest peak to the largest.
    """
    probe = next((t for t in trials if t.outcome.measured and t.purpose is not Purpose.BLOCK), None)
    entries = spread([e for e in table.entries if e.outcome.measured and not (probe and e.plan == probe.plan)], count)
    estimator = Traced(tracer, account, table.budget.memory_bytes)
    for entry in entries:
        estimator.refine(entry.plan)
    found: dict[str, Any] = {"asked": len(entries), "before": _compared(estimator.estimate, entries)}
    if probe is not None:
        estimator.refine(probe.plan)
        estimator.tell(probe)
        found["after"] = _compared(estimator.estimate, entries)
    found["refused"] = estimator.refused
    found["ok"] = all(name in found and _met(found[name], len(entries), most) for name, most in REQUIRED.items())
    return found


def spread(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Returns at most `count` entries, spread evenly from the smallest peak to the largest."""
    ordered = sorted(entries, key=peak)
    if len(ordered) <= count:
        return ordered
    return [ordered[place * (len(ordered) - 1) // max(count - 1, 1)] for place in range(count)]


def peak(entry: Entry) -> int:
    """Returns the measured peak that is compared with the budget."""
    assert entry.outcome.measurement is not None, "only plans that were measured are compared"
    return entry.outcome.measurement.memory.judged_bytes


def _compared(estimate: Callable[[Any], Estimate | None], entries: Sequence[Entry]) -> dict[str, Any]:
    """Returns the relative errors of the available estimates, and how many peaks lie outside their bounds."""
    pairs = [(peak(entry), found) for entry in entries if (found := estimate(entry.plan)) is not None]
    errors = [found.value_bytes / measured - 1 for measured, found in pairs]
    return {
        "estimated": len(pairs),
        "median_ratio": median(map(abs, errors)) if errors else None,
        "worst_ratio": max(errors, key=abs) if errors else None,
        "outside": sum(
            not (found.lower_bytes or 0) <= measured <= (found.upper_bytes or measured) for measured, found in pairs
        ),
    }


def _met(found: dict[str, Any], asked: int, most: float) -> bool:
    return 0 < asked == found["estimated"] and abs(found["worst_ratio"]) <= most and not found["outside"]
