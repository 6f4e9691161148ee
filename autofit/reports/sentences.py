"""Sentences of a report: the answer in one or two, why a search has none, and numbers, results and times in words."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from autofit.core.answer import Answer, Ratio
from autofit.core.outcome import Outcome, Status
from autofit.core.space import StrategyRecord
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.reports.report import AnswerTime, Report
from autofit.search.common_scale import proof_contradicts
from autofit.search.evidence import NOT_SETTLED, PROOF_CUT_OFF, PROOF_FAILED, SearchEvidence

_CAUSES = {
    1: "an internal error ended the search",
    2: "no plan could be measured or proven, and memory was not the only reason",
    3: "no plan fits the budget of {budget}",
    5: "the user's code failed",
    6: "another tuner uses the device or the study",
    7: "the time or trial limit was reached first",
    8: "the device stopped answering",
}
"""Causes by the exit code of the error (`autofit.core.errors`)."""
_ENDINGS = {
    Status.MEASURED: "was measured but not proven",
    Status.OVER_BUDGET: "exceeded the budget",
    Status.OUT_OF_MEMORY: "ran out of memory",
    Status.TIMED_OUT: "timed out",
    Status.CRASHED: "crashed",
    Status.INTERRUPTED: "was interrupted",
    Status.USER_ERROR: "failed in the user's code",
    Status.NOT_COMPILED: "could not be compiled",
    Status.NUMERIC: "gave a loss or gradient that is not finite",
}
_BASIS = re.compile(r" \([^()]*\)$")
"""The basis of an estimate at the end of the reason why a plan was skipped."""
_UNKNOWN = "the study does not have one"


def headline(r: Answer) -> str:
    """Returns the answer in one sentence: what the plan brings; what it is, where that is unknown."""
    if r.plan == r.baseline.plan:
        return f"Keep the baseline. {kept_because(r)}."
    if r.gain is None:
        return f"Use {in_words(r)}: {unknown_gain(r)}.{doubt(r)}"
    return f"{brought(r.gain, r.objective.unit)}{doubt(r)}"


def brought(gain: Ratio, unit: str) -> str:
    """Returns what a gain means, as a sentence; `unit` is what the throughput counts."""
    times = format_ratio(gain.value)
    if gain.low <= 1 <= gain.high:
        return f"{gain} of the baseline's throughput, which is within the noise."
    if gain.value < 1:
        return f"{times} of the baseline's throughput: {1 - gain.value:.0%} fewer {unit} per second."
    more = f"{gain.value - 1:,.0%} more {unit} per second"
    return f"{times} faster: {more}." if gain.pairs else f"About {times} faster: {more}, not compared side by side."


def chosen(r: Answer) -> str:
    """Returns the plan in words, how it changes the global batch, and its peak, as sentences."""
    plan, peak = in_words(r), r.proof.memory.judged_bytes
    change = batch_change(r.global_batch(r.baseline.plan), r.global_batch(r.plan))
    within = f" Its peak is {format_bytes(peak)} of a budget of {format_bytes(r.budget.memory_bytes)}." if peak else ""
    return f"The plan: {plan}{change}.{within}"


def in_words(r: Answer) -> str:
    """Returns the batch of the plan and the values that differ from the baseline, in words."""
    plan, baseline = r.plan, r.baseline.plan
    changes = plan.combination.changes_from(baseline.combination)
    words = [value_in_words(name, value, r.strategies) for name, value in changes.items()]
    sizes = [(each.micro_batch_size, each.accumulation_steps) for each in (plan, baseline)]
    if sizes[0] == sizes[1]:
        return f"{', '.join(words)}, with the batch as it is"
    return ", ".join([describe_plan(plan.replace(**dict(baseline.combination.values)), baseline), *words])


def value_in_words(name: str, value: bool | int | str, strategies: Iterable[StrategyRecord] = ()) -> str:
    """Returns the value of a knob in words, such as "bf16 precision", "2 checkpointed blocks" or "compiled blocks".

    What the strategies say of their values comes first.
    """
    said = next((each.words[key] for each in strategies if (key := f"{name}={value}") in each.words), "")
    knob, text = name.replace("_", " "), str(value).replace("_", " ")
    if said or value is True or value == "on":
        return said or knob
    return f"no {knob}" if value is False or value == "off" else f"{text} {knob}"


def kept_because(r: Answer) -> str:
    """Returns why the baseline is kept, as a sentence without a full stop."""
    notes = [candidate.note for candidate in r.alternatives]
    if any(note.startswith((PROOF_FAILED, PROOF_CUT_OFF)) for note in notes):
        return "No faster plan could be proven"
    if any(note.startswith(NOT_SETTLED) for note in notes):
        return "No faster plan could be proven and checked"
    ahead = any(c.gain is not None and c.gain.value > 1 + r.objective.tie_ratio for c in r.alternatives)
    return r.untried or f"Nothing that was tried is faster{' beyond the noise' if ahead else ''}"


def batch_change(before: int, after: int) -> str:
    """Returns how the samples of an optimizer step change, as the end of a sentence; "" if they do not."""
    if before == after:
        return ""
    return f"; the global batch {'grows' if after > before else 'shrinks'} from {before:,} to {after:,}"


def contradicting_rate(r: Answer) -> float | None:
    """Returns the throughput of the proof if it contradicts the one that is shown; None if it does not."""
    if r.rate_per_s is None:
        return None
    proven = r.objective.score(r.proof)
    return proven if proof_contradicts(r.proof, proven, r.rate_per_s) else None


def unknown_gain(r: Answer) -> str:
    """Returns why the gain over the baseline is unknown, as the end of a sentence."""
    outcome = r.baseline.outcome
    if outcome.measured:
        why = "" if contradicting_rate(r) is None else ", because the proof contradicts the probe"
        return f"its gain over the baseline is unknown{why}"
    if outcome.status is Status.OVER_BUDGET:
        return "the baseline exceeds the budget"
    if outcome.status is not Status.SKIPPED:
        return "the baseline does not run here"
    reason = _BASIS.sub("", outcome.reason)
    return f"the baseline was not run: {reason}" if reason else "the baseline was not run"


def doubt(r: Answer) -> str:
    """Returns a sentence on a proof that contradicts the throughput that is shown; "" if it does not."""
    proven = contradicting_rate(r)
    if proven is None or r.rate_per_s is None:
        return ""
    return f" Its proof ran at {short_number(proven)} {r.objective.unit}/s, not {short_number(r.rate_per_s)}."


def cause(evidence: SearchEvidence | None, trials: Sequence[Trial] = ()) -> str:
    """Returns in a few words why there is no answer."""
    if evidence is None:
        return _UNKNOWN
    if not evidence.failure:
        stopped = bool(trials) and trials[-1].outcome.status is Status.INTERRUPTED
        return "the search was interrupted" if stopped else "the search did not end"
    return _CAUSES.get(evidence.failure_code, "the search failed").format(
        budget=format_bytes(evidence.budget.memory_bytes)
    )


def failed_headline(evidence: SearchEvidence | None, trials: Sequence[Trial]) -> str:
    """Returns that there is no answer, the cause, and how the runs of the plans ended."""
    if evidence is None:
        return f"No answer is known: {_UNKNOWN}. Make a report of its plan file instead."
    plan, ended = evidence.baseline, ""
    ran = [each for each in trials if each.plan == plan and each.outcome.status is not Status.SKIPPED]
    if ran:
        status, purpose = ran[-1].outcome.status, ran[-1].purpose
        how = _ENDINGS.get(status, f"was not completed ({status.value})")
        later = purpose is not Purpose.PROBE and status is not Status.MEASURED
        if later and any(each.outcome.measured for each in ran):
            how = f"was measured, but its {'proof' if purpose is Purpose.PROOF else 'run in the race'} {how}"
        steps = f" x {plan.accumulation_steps:,}" if plan.accumulation_steps > 1 else ""
        ended = f" The baseline, micro batch {plan.micro_batch_size:,}{steps}, {how}."
    return f"No plan is recommended: {cause(evidence, trials)}.{ended}"


RATIOS = (
    "Ratios in reasons compare only the rounds that both plans ran; a plan that did not race is compared by its probe. "
    "They may differ from the quotient of two throughputs in this table."
)
"""Note below the table of all plans of a search with a race."""


def counted(count: int, name: str) -> str:
    """Returns a number of things: "1 plan", "1,200 plans"."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {name}s"


def more_in(count: int, where: str) -> str:
    """Returns where to read the others of a list; "" if there are none."""
    return f"and {count} more in {where}" if count > 0 else ""


def runs(report: Report) -> str:
    """Returns the number of trials and of plans, how the trials ended and how long they took; "" if that is unknown.

    A plan runs again when it is proven. Where plans are of earlier searches, their number is left out.
    """
    total = sum(report.counts.values())
    if not total:
        return ""
    ended = ", ".join(f"{count:,} {status}" for status, count in report.counts.items())
    of = "" if any(row.earlier for row in report.rows) else f" of {counted(len(report.rows), 'plan')}"
    took = f", in {format_duration(report.duration_s)}" if report.duration_s else ""
    return f"{counted(total, 'trial')}{of}: {ended}{took}"


def interval_text(ratio: Ratio, decimals: int = 2) -> str:
    """Returns the interval of a ratio: "1.10 to 1.32"."""
    return f"{format_ratio(ratio.low, decimals, '')} to {format_ratio(ratio.high, decimals, '')}"


def answer_times(report: Report) -> str:
    """Returns when each answer came: "1.00x after 5.2 s, 4.90x after 41 s"; "" for fewer than two answers."""
    if len(report.answers) < 2:
        return ""
    return ", ".join(f"{answer_worth(report, each)} after {duration_text(each.at_s)}" for each in report.answers)


def answer_worth(report: Report, answer: AnswerTime) -> str:
    """Returns the throughput of an answer over the baseline; the throughput itself if the baseline has none."""
    return f"{short_number(answer.rate_per_s)} {report.unit}/s" if answer.ratio is None else format_ratio(answer.ratio)


def duration_text(seconds: float) -> str:
    """Returns a duration in words, from 10 s on without parts of a second."""
    return format_duration(seconds if seconds < 10 else round(seconds))


def ending(outcome: Outcome) -> str:
    """Returns how the run of a plan ended, in a word or two."""
    return "not run" if outcome.status is Status.SKIPPED else outcome.status.value


def difference(ratio: float) -> str:
    """Returns a relative difference with its sign and one decimal: "+3.1%", and "0.0%" without a sign."""
    text = f"{ratio:+.1%}"
    return text if text[1:] != "0.0%" else "0.0%"


def instant(text: str) -> datetime | None:
    """Returns a time in ISO 8601, in UTC; without a time zone it is UTC. None if the text is not such a time."""
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def moment(text: str) -> str:
    """Returns a time in ISO 8601 in UTC with whole seconds, such as "2026-11-24 20:11:08 UTC"; other texts as given."""
    found = instant(text)
    return text if found is None else f"{found:%Y-%m-%d %H:%M:%S} UTC"
