"""A recommendation as a small piece of HTML, which a notebook shows in place of its text."""

from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.recommendation import Candidate, Ratio, Recommendation
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.reports.headline import doubt, unknown_gain
from autofit.reports.html.parts import LABEL, REASON
from autofit.reports.markup import Markup, element, joined, shortened

_OTHERS = 3
"""Number of alternatives shown."""


def card(recommendation: Recommendation) -> str:
    """Returns the answer, the plans beside it and the caveats, without a style sheet, script or address.

    It is drawn in the colours and fonts of the notebook, light or dark.
    """
    r = recommendation
    baseline = r.baseline.plan
    name = "Keep the baseline" if r.plan == baseline else "Recommended"
    headline = element("p", element("b", f"{name}: "), shortened(describe_plan(r.plan, baseline), LABEL), _gain(r))
    titles = ("", "Plan", "vs baseline", f"{r.objective.unit}/s", "Peak")
    heads = element("tr", *(element("th", text, scope="col") for text in titles))
    rate = _rate(r, r.rate_per_s, r.proof)
    gain = None if r.plan == baseline else r.gain
    rows = [_row("recommended", describe_plan(r.plan, baseline), gain, rate, r.proof.memory.judged_bytes)]
    rows += [_candidate(r, "baseline", r.baseline)] if r.plan != baseline else []
    rows += [_candidate(r, "alternative", one) for one in r.alternatives if one.plan != baseline][:_OTHERS]
    table = element("table", element("thead", heads), element("tbody", joined(rows)))
    budget = element("p", f"Memory budget: {_size(r.budget.memory_bytes)}.")
    notes = element("ul", joined(element("li", shortened(text, REASON)) for text in r.caveats))
    caveats = element("details", element("summary", _counted(len(r.caveats))), notes) if r.caveats else None
    return element("div", headline, table, budget, caveats)


def _gain(r: Recommendation) -> str:
    if r.plan == r.baseline.plan:
        return "."
    if r.gain is not None:
        return f": {r.gain} of the baseline's throughput.{doubt(r)}"
    return f": {unknown_gain(r)}.{doubt(r)}"


def _candidate(r: Recommendation, name: str, one: Candidate) -> Markup:
    measurement = one.outcome.measurement if one.outcome.measured else None
    peak = None if measurement is None else measurement.memory.judged_bytes
    words = describe_plan(one.plan, r.baseline.plan)
    rate = None if measurement is None else _rate(r, one.rate_per_s, measurement)
    status = "not run" if one.outcome.status is Status.SKIPPED else one.outcome.status.value
    gain = None if one.plan == r.baseline.plan else one.gain
    return _row(name, words, gain, rate, peak, "" if one.outcome.measured else status)


def _rate(r: Recommendation, rate_per_s: float | None, measurement: Measurement) -> float | None:
    """Returns a throughput on the scale of the others, or as measured where the record has no such scale."""
    if rate_per_s is not None or r.rate_per_s is not None:
        return rate_per_s
    return measurement.tokens_per_s if r.objective.unit == "tokens" else measurement.samples_per_s


def _row(
    name: str, words: str, gain: Ratio | None, rate_per_s: float | None, peak_bytes: int | None, status: str = ""
) -> Markup:
    over = "" if gain is None else format_ratio(gain.value)
    rate = status or ("–" if rate_per_s is None else short_number(rate_per_s))
    peak = _size(peak_bytes) if peak_bytes else "–"
    cells = (shortened(words, LABEL), over, rate, peak)
    return element("tr", element("th", name, scope="row"), *(element("td", text) for text in cells))


def _size(count: int) -> str:
    """Returns bytes with a space that does not break, since the card has no style sheet."""
    return format_bytes(count).replace(" ", "\u00a0")


def _counted(count: int) -> str:
    return f"{count} {'caveat' if count == 1 else 'caveats'}"
