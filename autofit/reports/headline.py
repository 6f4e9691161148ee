"""Headline: the answer in one or two sentences, or why a search has none."""

import re
from collections.abc import Iterable, Sequence

from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio, Recommendation
from autofit.core.strategy_record import StrategyRecord
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.core.wording import describe_plan
from autofit.search.contradiction import proof_contradicts
from autofit.search.evidence import PROOF_FAILED, SearchEvidence

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


def headline(r: Recommendation) -> str:
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


def chosen(r: Recommendation) -> str:
    """Returns the plan in words, how it changes the global batch, and its peak, as sentences."""
    plan, peak = in_words(r), r.proof.memory.judged_bytes
    change = batch_change(r.baseline.plan.global_batch_size, r.plan.global_batch_size)
    within = f" Its peak is {format_bytes(peak)} of a budget of {format_bytes(r.budget.memory_bytes)}." if peak else ""
    return f"The plan: {plan}{change}.{within}"


def in_words(r: Recommendation) -> str:
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

    Args:
        name: name of the knob.
        value: its value.
        strategies: what strategies say of their values.
    """
    said = next((each.words[key] for each in strategies if (key := f"{name}={value}") in each.words), "")
    knob, text = name.replace("_", " "), str(value).replace("_", " ")
    if said or value is True or value == "on":
        return said or knob
    return f"no {knob}" if value is False or value == "off" else f"{text} {knob}"


def kept_because(r: Recommendation) -> str:
    """Returns why the baseline is kept, as a sentence without a full stop."""
    if any(candidate.note.startswith(PROOF_FAILED) for candidate in r.alternatives):
        return "No faster plan could be proven"
    ahead = any(c.gain is not None and c.gain.value > 1 + r.objective.tie_ratio for c in r.alternatives)
    return r.untried or f"Nothing that was tried is faster{' beyond the noise' if ahead else ''}"


def absent_baseline(r: Recommendation) -> str:
    """Returns why the baseline has no throughput, as the end of a sentence; "" if it was measured."""
    outcome = r.baseline.outcome
    if outcome.measured:
        return ""
    if outcome.status is Status.OVER_BUDGET:
        return "the baseline exceeds the budget"
    if outcome.status is not Status.SKIPPED:
        return "the baseline does not run here"
    reason = _BASIS.sub("", outcome.reason)
    return f"the baseline was not run: {reason}" if reason else "the baseline was not run"


def batch_change(before: int, after: int) -> str:
    """Returns how the samples of an optimizer step change, as the end of a sentence; "" if they do not."""
    if before == after:
        return ""
    return f"; the global batch {'grows' if after > before else 'shrinks'} from {before:,} to {after:,}"


def contradicting_rate(r: Recommendation) -> float | None:
    """Returns the throughput of the proof if it contradicts the one that is shown; None if it does not."""
    if r.rate_per_s is None:
        return None
    proven = r.objective.score(r.proof)
    return proven if proof_contradicts(r.proof, proven, r.rate_per_s) else None


def unknown_gain(r: Recommendation) -> str:
    """Returns why the gain over the baseline is unknown, as the end of a sentence."""
    why = "" if contradicting_rate(r) is None else ", because the proof contradicts the probe"
    return absent_baseline(r) or f"its gain over the baseline is unknown{why}"


def doubt(r: Recommendation) -> str:
    """Returns a sentence on a proof that contradicts the throughput that is shown; "" if it does not."""
    proven = contradicting_rate(r)
    if proven is None or r.rate_per_s is None:
        return ""
    return f" Its proof ran at {short_number(proven)} {r.objective.unit}/s, not {short_number(r.rate_per_s)}."


def cause(evidence: SearchEvidence | None, trials: Sequence[Trial] = ()) -> str:
    """Returns in a few words why there is no recommendation."""
    if evidence is None:
        return _UNKNOWN
    if not evidence.failure:
        stopped = bool(trials) and trials[-1].outcome.status is Status.INTERRUPTED
        return "the search was interrupted" if stopped else "the search did not end"
    return _CAUSES.get(evidence.failure_code, "the search failed").format(
        budget=format_bytes(evidence.budget.memory_bytes)
    )


def failed_headline(evidence: SearchEvidence | None, trials: Sequence[Trial]) -> str:
    """Returns that there is no recommendation, the cause, and how the runs of the plans ended."""
    if evidence is None:
        return f"No recommendation is known: {_UNKNOWN}. Make a report of its plan file instead."
    baseline = _latest(trials, evidence.baseline)
    ended = "" if baseline is None else f" The baseline, {_batch(baseline.plan)}, {_ended(baseline, trials)}."
    return f"No plan is recommended: {cause(evidence, trials)}.{ended}"


def _latest(trials: Iterable[Trial], plan: Plan) -> Trial | None:
    """Returns the last trial of a plan that ran."""
    ran = [each for each in trials if each.plan == plan and each.outcome.status is not Status.SKIPPED]
    return ran[-1] if ran else None


def _batch(plan: Plan) -> str:
    steps = plan.accumulation_steps
    return f"micro batch {plan.micro_batch_size:,}" + (f" x {steps:,}" if steps > 1 else "")


def _ended(trial: Trial, trials: Iterable[Trial]) -> str:
    status = trial.outcome.status
    ended = _ENDINGS.get(status, f"was not completed ({status.value})")
    ran = any(each.plan == trial.plan and each.outcome.measured for each in trials)
    if trial.purpose is Purpose.PROBE or status is Status.MEASURED or not ran:
        return ended
    return f"was measured, but its {'proof' if trial.purpose is Purpose.PROOF else 'run in the race'} {ended}"
