"""Counting: numbers of plans and runs, results of checks, errors and times in words, the same in every format."""

from datetime import UTC, datetime

from autofit.core.briefing import GateRecord
from autofit.core.recommendation import Ratio
from autofit.core.units import format_duration, format_ratio, short_number
from autofit.reports.report import AnswerTime, Report

RATIOS = (
    "Ratios in reasons compare only the rounds that both plans ran; a plan that did not race is compared by its probe. "
    "They may differ from the quotient of two throughputs in this table."
)
"""Note below the table of all plans of a search with a race."""
_UNCHECKED = "could not be checked"
"""Part of the reason of a numerical check that could not be run (`autofit.gates.check`)."""


def counted(count: int, name: str) -> str:
    """Returns a number of things: "1 plan", "1,200 plans"."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def runs(report: Report) -> str:
    """Returns the number of trials and of plans, and how the trials ended; "" if that is unknown.

    A plan runs again when it is proven, so there may be more trials than plans. Plans of earlier searches are not
    counted.
    """
    total = sum(report.counts.values())
    if not total:
        return ""
    ended = ", ".join(f"{count:,} {status}" for status, count in report.counts.items())
    of = "" if any(row.earlier for row in report.rows) else f" of {counted(len(report.rows), 'plan')}"
    return f"{counted(total, 'trial')}{of}: {ended}"


def interval_text(ratio: Ratio, decimals: int = 2) -> str:
    """Returns the interval of a ratio: "1.10 to 1.32"."""
    return f"{format_ratio(ratio.low, decimals, '')} to {format_ratio(ratio.high, decimals, '')}"


def answer_times(report: Report) -> str:
    """Returns when each answer came: "1.00x after 5.2 s, 4.90x after 41 s"; "" for fewer than two answers."""
    if len(report.answers) < 2:
        return ""
    return ", ".join(f"{answer_worth(report, each)} after {seconds_text(each.at_s)}" for each in report.answers)


def answer_worth(report: Report, answer: AnswerTime) -> str:
    """Returns the throughput of an answer over the baseline; the throughput itself if the baseline has none."""
    if answer.ratio is None:
        return f"{short_number(answer.rate_per_s)} {report.unit}/s"
    return format_ratio(answer.ratio)


def seconds_text(seconds: float) -> str:
    """Returns a time since the search began, in whole seconds from 10 on."""
    return format_duration(seconds if seconds < 10 else round(seconds))


def verdict(gate: GateRecord) -> str:
    """Returns "passed", "failed", or "not checked" for a check that could not be run."""
    if gate.passed:
        return "passed"
    return "not checked" if _UNCHECKED in gate.reason else "failed"


def difference(ratio: float) -> str:
    """Returns a relative difference with its sign and one decimal: "+3.1%", and "0.0%" without a sign."""
    text = f"{ratio:+.1%}"
    return text if text[1:] != "0.0%" else "0.0%"


def moment(text: str) -> str:
    """Returns a time in ISO 8601 in UTC with whole seconds, such as "2026-11-24 20:11:08 UTC"; other texts as given."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    found = found.astimezone(UTC) if found.tzinfo is not None else found
    return f"{found:%Y-%m-%d %H:%M:%S} UTC"
