"""A Recommendation in words: what was chosen, the gain, the peak, why."""

import textwrap

from autofit.core.canvas import WIDTH
from autofit.core.measurement import Measurement
from autofit.core.outcome import Outcome
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.recommendation import Candidate, Recommendation
from autofit.core.units import format_bytes, format_duration

_SHOWN, _LIGHTER = 5, 3
"""So many alternatives are shown, and beside them so many that save more memory than they cost speed."""
_LIGHTER_RATIO = 0.01
"""A plan that needs less memory by less than this is no lighter: readings of one plan differ by as much."""


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


def describe_plan(plan: Plan, baseline: Plan) -> str:
    """Returns the batch of `plan` and the knobs that differ from `baseline`, in words."""
    micro, steps = plan.micro_batch_size, plan.accumulation_steps
    batch = f"micro batch {micro}" + (f" x {steps} accumulation steps = {micro * steps}" if steps > 1 else "")
    changes = plan.changes_from(baseline)
    others = [f"{k}={v}" for k, v in changes.items() if k not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)]
    return ", ".join([batch, *others])


def describe_outcome(outcome: Outcome, unit: str = "samples") -> str:
    """Returns throughput and peak of a measured outcome, or why there is none."""
    if outcome.measurement is None or not outcome.measured:
        return f"{outcome.status.value}: {outcome.reason}"
    return _speed(outcome.measurement, unit)


def _speed(measurement: Measurement, unit: str) -> str:
    tokens = measurement.tokens_per_s if unit == "tokens" else None
    rate = (
        f"{short_number(measurement.samples_per_s)} samples/s" if tokens is None else f"{short_number(tokens)} tokens/s"
    )
    peak = measurement.memory.judged_bytes
    return f"{rate}, peak {format_bytes(peak)}" if peak else rate


def short_number(value: float) -> str:
    """Returns four digits of `value`, without an exponent where a person would write none: 52,380 or 0.0312."""
    text = f"{value:.4g}"
    return f"{float(text):,.0f}" if float(text) >= 1000 else text


def _headline(recommendation: Recommendation) -> str:
    r = recommendation
    plan = describe_plan(r.plan, r.baseline.plan)
    if r.plan == r.baseline.plan:
        return f"Keep your own setting: {plan}. Nothing that was tried is faster."
    gain = "your own setting does not run here" if r.gain is None else f"{r.gain} of your own setting's throughput"
    return f"Use {plan}: {gain}."


def _table(recommendation: Recommendation) -> list[str]:
    """Returns the plan, what it was compared with and what else there is, a paragraph each."""
    r = recommendation
    own, unit = r.baseline.plan, r.objective.unit
    proven = f"proven by {r.proof.worst_steps} whole steps on the worst batch"
    told = ["", f"plan      {_speed(r.proof, unit)}{_foretold(r)}; {proven}"]
    told.append(f"yours     {describe_plan(own, own)}: {describe_outcome(r.baseline.outcome, unit)}")
    told += [_planned(r)] if r.objective.planned_samples is not None else []
    lighter = [c for c in r.alternatives if c.on_front and _is_worth_it(c, r)][:_LIGHTER]
    others = [c for c in r.alternatives if c not in lighter]
    told += [_alternative("also", candidate, own, unit) for candidate in others[:_SHOWN]]
    told += [_alternative("lighter", candidate, own, unit) for candidate in lighter]
    more = len(others) - _SHOWN
    return [*told, f"          and {more} more, in the plan file"] if more > 0 else told


def _foretold(recommendation: Recommendation) -> str:
    """Returns what the peak was estimated to be before the plan ran; nothing where that was a guess without bounds."""
    predicted, peak = recommendation.predicted, recommendation.proof.memory.judged_bytes
    if predicted is None or not predicted.is_bounded or not peak:
        return ""
    return f" (predicted {format_bytes(predicted.value_bytes)}, {predicted.value_bytes / peak - 1:+.1%})"


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
    ours, theirs = candidate.gain, r.gain
    if ours is not None and theirs is not None and ours.pairs and theirs.pairs:  # both ran in the race
        speed = ours.value / theirs.value
    else:
        speed = r.objective.score(measurement) / r.objective.score(r.proof)
    share = measurement.memory.judged_bytes / max(r.proof.memory.judged_bytes, 1)
    return share < min(speed, 1.0) and share <= 1 - _LIGHTER_RATIO


def _alternative(label: str, candidate: Candidate, own: Plan, unit: str) -> str:
    told = f"{label:10}{describe_plan(candidate.plan, own)}: {describe_outcome(candidate.outcome, unit)}"
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
