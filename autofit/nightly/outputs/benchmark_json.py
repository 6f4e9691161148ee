"""A night for github-action-benchmark: a list of values, whose history the action keeps and plots.

The format is that of its tools `customBiggerIsBetter` (`rendered`) and `customSmallerIsBetter` (`rendered_memory`): a
list of objects with `name`, `unit`, `value`, and optionally `range` and `extra` (src/extract.ts of
benchmark-action/github-action-benchmark). The action reads a range as "± number", and fails on an empty list: a night
without any value has nothing for it.
"""

import json
import math
from collections.abc import Iterator

from autofit.core.printable import one_line
from autofit.nightly.outputs.facts import History, change, device, plan_words
from autofit.nightly.records import Figures, NightRecord
from autofit.nightly.result import NightResult
from autofit.reports.markup import shortened

_MOST_NAME, _MOST_EXTRA = 120, 300

Value = dict[str, str | float]
"""A value of the list."""


def rendered(night: NightResult, history: History) -> str:
    """Returns the throughput of each job that ran: bigger is better. The history is not used: the action keeps its own.

    The name of a value has the device, so that measurements from different devices are never in one chart.
    """
    entries: list[Value] = [
        {
            "name": f"{_name(record)}: throughput",
            "unit": f"{shortened(record.unit, 20)}/s",
            "value": figures.rate_per_s,
            "range": f"± {_half_range(figures):.6g}",
            "extra": _extra(record, figures),
        }
        for record, figures in _measured(night)
    ]
    return _text(entries)


def rendered_memory(night: NightResult, history: History) -> str:
    """Returns the peak memory of each job that ran: smaller is better."""
    entries: list[Value] = [
        {
            "name": f"{_name(record)}: peak memory",
            "unit": "MiB",
            "value": round(figures.peak_bytes / 2**20, 3),
            "extra": _extra(record, figures),
        }
        for record, figures in _measured(night)
    ]
    return _text(entries)


def _measured(night: NightResult) -> Iterator[tuple[NightRecord, Figures]]:
    for record in night.records:
        if record.accepted is not None and all(map(math.isfinite, record.accepted.rates_per_s)):
            yield record, record.accepted


def _name(record: NightRecord) -> str:
    place = record.environment
    on = f" on {shortened(place.device_name, _MOST_NAME)}" if place is not None else ""
    return f"{shortened(record.job, _MOST_NAME)}{on}"


def _half_range(figures: Figures) -> float:
    """Returns half the distance between the slowest and the fastest block."""
    return (max(figures.rates_per_s) - min(figures.rates_per_s)) / 2


def _extra(record: NightRecord, figures: Figures) -> str:
    """Returns the lines of a tooltip: the verdict, the plan, the device."""
    verdict = f"{record.verdict.kind.value}: {record.verdict.reason}"
    against = f"{change(record)} against what was expected" if change(record) else ""
    lines = (verdict, against, plan_words(figures.plan, record), device(record))
    return "\n".join(shortened(one_line(line), _MOST_EXTRA) for line in lines if line)


def _text(entries: list[Value]) -> str:
    return json.dumps(entries, indent=2, allow_nan=False) + "\n"
