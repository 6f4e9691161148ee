"""A Recommendation in words: what was chosen, the gain, the peak, why."""

import textwrap
from collections.abc import Sequence

from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Recommendation
from autofit.core.units import format_bytes, format_duration
from autofit.core.wording import describe_outcome, describe_plan, describe_speed
from autofit.reports.canvas import WIDTH
from autofit.search.choice import lighter

_SHOWN, _LIGHTER = 5, 3
"""So many alternatives are shown, and beside them so many that save more memory than they cost speed."""
_NEAR_RATIO = 1.25
"""Of two plans that differ in the micro batch alone, and by less than this, one is shown."""


def summarize(recommendation: Recommendation, width: int = WIDTH) -> str:
    """Returns the recommendation as plain text of about 20 paragraphs, ending without a newline.

    Args:
        recommendation: what is told.
        width: characters of a line; only a path or a word that is longer goes beyond it.
    """
    r = recommendation
    paragraphs = [*_table(r), *_facts(r), *(f"note      {caveat}" for caveat in r.caveats)]
    if r.refused:
        paragraphs += ["", *(f"left out  {refused.name}: {refused.reason}" for refused in r.refused)]
    lines = _wrapped(_headline(r), width, "")
    return "\n".join([*lines, *(line for paragraph in paragraphs for line in _wrapped(paragraph, width))])


def _headline(recommendation: Recommendation) -> str:
    r = recommendation
    plan = describe_plan(r.plan, r.baseline.plan)
    if r.plan == r.baseline.plan:
        return f"Keep your own setting: {plan}. {r.untried or 'Nothing that was tried is faster'}."
    gain = "your own setting does not run here" if r.gain is None else f"{r.gain} of your own setting's throughput"
    return f"Use {plan}: {gain}{_batch_change(r)}."


def _batch_change(recommendation: Recommendation) -> str:
    """Returns in words how the samples of an optimizer step change."""
    own, new = (plan.global_batch_size for plan in (recommendation.baseline.plan, recommendation.plan))
    if own == new:
        return ""
    return f"; the batch {'grows' if new > own else 'shrinks'} from {own:,} to {new:,}"


def _table(recommendation: Recommendation) -> list[str]:
    """Returns the plan, what it was compared with and what else there is, a paragraph each."""
    r = recommendation
    own, unit = r.baseline.plan, r.objective.unit
    proven = f"proven by {r.proof.worst_steps} whole steps on the worst batch"
    told = ["", f"plan      {describe_speed(r.proof, unit, r.rate_per_s)}{_estimated(r)}; {proven}"]
    yours = describe_outcome(r.baseline.outcome, unit, r.baseline.rate_per_s)
    told.append(f"yours     {describe_plan(own, own)}: {yours}")
    told += [_planned(r)] if r.objective.planned_samples is not None else []
    worth = _distinct([c for c in r.alternatives if c.on_front and _is_worth_it(c, r)], [r.plan])[:_LIGHTER]
    others = [c for c in r.alternatives if c not in worth]
    shown = _distinct(others, [r.plan, *(c.plan for c in worth)])[:_SHOWN]
    told += [_alternative("also", candidate, own, unit) for candidate in shown]
    told += [_alternative("lighter", candidate, own, unit) for candidate in worth]
    more = len(others) - len(shown)
    return [*told, f"          and {more} more, in the plan file"] if more > 0 else told


def _estimated(recommendation: Recommendation) -> str:
    """Returns what the peak was estimated to be before the plan ran; nothing where that was a guess without bounds."""
    estimate, peak = recommendation.estimate, recommendation.proof.memory.judged_bytes
    if estimate is None or not estimate.is_bounded or not peak:
        return ""
    return f" (estimated {format_bytes(estimate.value_bytes)}, {estimate.value_bytes / peak - 1:+.1%})"


def _planned(recommendation: Recommendation) -> str:
    """Returns the planned training, and what it is charged for its start under the plan and under the user's own."""
    r = recommendation
    starts = [format_duration(r.proof.startup_s)] if r.proof.startup_s is not None else []
    own = r.baseline.outcome.measurement
    if r.plan != r.baseline.plan and own is not None and own.startup_s is not None:
        starts.append(f"yours {format_duration(own.startup_s)}")
    samples, size = r.objective.planned_samples or 0, r.plan.global_batch_size
    told = f"planned   {samples:,} samples, {samples / size:,.0f} steps of {size}"
    return f"{told}; charged for its start: {', '.join(starts)}" if starts else told


def _is_worth_it(candidate: Candidate, recommendation: Recommendation) -> bool:
    """Says whether a plan gives up a smaller share of the recommended one's speed than of its memory."""
    r, measurement = recommendation, candidate.outcome.measurement
    if measurement is None:
        return False
    ours, theirs = candidate.rate_per_s, r.rate_per_s
    if ours is None or theirs is None:
        ours, theirs = r.objective.score(measurement), r.objective.score(r.proof)
    peak, proven = measurement.memory.judged_bytes, r.proof.memory.judged_bytes
    return lighter(peak, proven) and peak < min(ours / theirs, 1.0) * proven


def _distinct(candidates: Sequence[Candidate], shown: Sequence[Plan]) -> list[Candidate]:
    """Returns the candidates without those that are nearly equal to one before them or to a plan that is shown."""
    seen, found = list(shown), []
    for candidate in candidates:
        if not any(_nearly_equal(candidate.plan, plan) for plan in seen):
            found.append(candidate)
            seen.append(candidate.plan)
    return found


def _nearly_equal(one: Plan, other: Plan) -> bool:
    small, large = sorted((one.micro_batch_size, other.micro_batch_size))
    return one.combination == other.combination and large < _NEAR_RATIO * small


def _alternative(label: str, candidate: Candidate, own: Plan, unit: str) -> str:
    speed = describe_outcome(candidate.outcome, unit, candidate.rate_per_s)
    told = f"{label:10}{describe_plan(candidate.plan, own)}: {speed}"
    return f"{told}; {candidate.note}" if candidate.note else told


def _facts(recommendation: Recommendation) -> list[str]:
    """Returns the limits, the place and the cost of the search, a paragraph each."""
    r, environment = recommendation, recommendation.environment
    versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
    trials = ", ".join(f"{count} {status}" for status, count in r.counts.items()) or "none"
    return [
        "",
        f"budget    {r.budget.memory_note or format_bytes(r.budget.memory_bytes)}",
        f"device    {environment.device_name} ({environment.device_type}), {versions}",
        f"trials    {trials} in {format_duration(r.duration_s)}; study {r.study}",
        *([""] if r.caveats else []),
    ]


def _wrapped(text: str, width: int, indent: str = " " * 10) -> list[str]:
    """Returns `text` as lines, one that is empty for no text; a path or a word is never broken."""
    flat = text[: len(indent)] + " ".join(text[len(indent) :].split())
    lines = textwrap.wrap(flat, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines or [""]
