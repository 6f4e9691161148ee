"""The other plans of an Answer, as a short table: those that raced, the fastest of the others, and lighter ones.

The raced plans come first, then the others; both are sorted by throughput.
"""

import re
from collections.abc import Sequence

from autofit.core.answer import Answer, Candidate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.units import format_bytes, short_number
from autofit.core.wording import describe_plan
from autofit.reports.sentences import more_in
from autofit.reports.tables import Column, table
from autofit.search.choice import lighter
from autofit.terminal import wrapped

_SHOWN, _LIGHTER = 5, 3
"""Numbers of alternatives shown: the fastest, and those that save more memory than they cost speed. All raced plans are
shown."""
_NEAR_RATIO = 1.25
"""If two plans did not race and differ only in the micro batch, by less than this factor, only one is shown."""
_WIDE, _WHY_CELLS, _OTHER_CELLS = 100, 31, 81
"""Width from which the reason has a column of its own, the maximum number of its cells, and the number of cells that
the other columns need."""
_FIGURES = re.compile(r"(?:[:;,] )?(?:by its probe )?\d[\d.,]*x \(.*$")
"""The figures in a note of `autofit.search.explanations`, which the table has in columns."""


def others(r: Answer, width: int, plan_file: str | None) -> list[str]:
    """Returns the table of the other plans that were measured; [] if there are none. `plan_file`: see `summarize`."""
    shown = _shown(r, _worth(r))
    if not shown:
        return []
    plans = [describe_plan(c.plan, r.baseline.plan) for c in shown]
    known = reasons_of(r)
    reasons = [known[c.plan.key] for c in shown]
    if width < _WIDE:
        plans = [f"{plan}: {reason}" if reason else plan for plan, reason in zip(plans, reasons, strict=True)]
        reasons = [""] * len(shown)
    measured = [c.outcome.measurement for c in shown]
    peaks = ["" if m is None else format_bytes(m.memory.judged_bytes) for m in measured]
    lines = table(
        [
            Column("What else was tried", plans),
            Column("vs baseline", ["" if c.gain is None else str(c.gain) for c in shown], right=True),
            Column(f"{r.objective.unit}/s", [rate_text(r, c) for c in shown], right=True),
            Column("peak", peaks, right=True),
            Column("", reasons, most=min(_WHY_CELLS, width - _OTHER_CELLS)),
        ],
        width,
    )
    more = more_in(len(r.alternatives) - len(shown), plan_file or "fit.alternatives")
    return [*lines, *wrapped(more, width, "  ", "  ")] if more else lines


def reasons_of(r: Answer) -> dict[str, str]:
    """Returns why each alternative was not chosen, and which are worth a look because they are lighter, by plan key."""
    found = {c.plan.key: why(c) for c in r.alternatives}
    for key in (c.plan.key for c in _worth(r)):
        found[key] = f"{found[key]}, but lighter" if found[key] else "lighter"
    return found


def why(candidate: Candidate) -> str:
    """Returns why a plan was not chosen, without the figures that stand beside it.

    A plan is "slower" only if the interval of its ratio to the recommended plan is below 1.
    """
    reason = _FIGURES.sub("", candidate.note)
    if reason or not candidate.note or candidate.outcome.measurement is None:
        return reason
    ratio = candidate.over_recommended
    if ratio is None:
        return ""
    if ratio.high < 1:
        return "slower"
    return "within the noise" if ratio.low <= 1 else ""


def recommended(r: Answer) -> Candidate:
    """Returns the recommended plan with its proof, in the form of the other plans."""
    proven = Outcome(status=Status.MEASURED, measurement=r.proof)
    return Candidate(plan=r.plan, outcome=proven, gain=r.gain, rate_per_s=r.rate_per_s, on_front=True)


def rate_per_s(r: Answer, one: Candidate) -> float | None:
    """Returns the throughput of a plan on the scale of the other plans of its answer; None if it is unknown.

    In a record without throughputs, it is the gain times the throughput of the baseline, or else that of its own run.
    """
    if r.rate_per_s is not None or one.rate_per_s is not None:
        return one.rate_per_s
    baseline, measurement = r.baseline.outcome, one.outcome.measurement
    if one.gain is not None and baseline.measured and baseline.measurement is not None:
        return one.gain.value * r.objective.score(baseline.measurement)
    return r.objective.score(measurement) if one.outcome.measured and measurement is not None else None


def rate_text(r: Answer, one: Candidate) -> str:
    """Returns the throughput of a plan; "" if it is unknown."""
    rate = rate_per_s(r, one)
    return "" if rate is None else short_number(rate)


def _worth(r: Answer) -> list[Candidate]:
    """Returns the plans to show because they give up a smaller share of the speed than of the memory."""
    ours, proven, found = rate_per_s(r, recommended(r)), r.proof.memory.judged_bytes, list[Candidate]()
    for c in r.alternatives:
        measurement, theirs = c.outcome.measurement, rate_per_s(r, c)
        if c.on_front and measurement is not None and theirs is not None and ours is not None:
            peak = measurement.memory.judged_bytes
            if lighter(peak, proven) and peak < min(theirs / ours, 1.0) * proven:
                found.append(c)
    return _distinct(found, [r.plan])[:_LIGHTER]


def _shown(r: Answer, worth: list[Candidate]) -> list[Candidate]:
    """Returns the plans to show: all that raced, then the fastest of the others and those of `worth`."""
    fastest_first = sorted(r.alternatives, key=lambda c: -(rate_per_s(r, c) or 0.0))
    raced = [c for c in fastest_first if _raced(c)]
    others = [c for c in fastest_first if not _raced(c)]
    rest = _distinct([c for c in others if c not in worth], [r.plan, *(c.plan for c in raced + worth)])
    kept = [*rest[: max(_SHOWN - len(raced), 0)], *worth]
    return [*raced, *(c for c in others if c in kept)]


def _raced(candidate: Candidate) -> bool:
    """Returns whether a plan ran in paired blocks with the recommended plan or the baseline."""
    return any(ratio is not None and ratio.pairs > 0 for ratio in (candidate.over_recommended, candidate.gain))


def _distinct(candidates: Sequence[Candidate], shown: Sequence[Plan]) -> list[Candidate]:
    """Returns the candidates without those that are nearly equal to an earlier one or to a plan that is shown."""
    seen, found = list(shown), []
    for candidate in candidates:
        near = (plan for plan in seen if plan.combination == candidate.plan.combination)
        sizes = (sorted((plan.micro_batch_size, candidate.plan.micro_batch_size)) for plan in near)
        if not any(large < _NEAR_RATIO * small for small, large in sizes):
            found.append(candidate)
            seen.append(candidate.plan)
    return found
