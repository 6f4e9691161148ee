"""The rows of a report: every plan with its outcome, all throughputs on one scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.recommendation import Candidate, Ratio, Recommendation
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_plan
from autofit.reports.report import BATCH_ONLY, PlanRow, Role
from autofit.search.choice import DISTURBED_NOISE_RATIO, FrontPoint, front, quotient

_NO_RESULT = (Status.SKIPPED, Status.INTERRUPTED)
_OTHER_SCALE = "measured, but its throughput is not known on the scale of the race"


@dataclass(frozen=True, slots=True)
class KnownPlan:
    """What is known of one plan.

    Attributes:
        plan: the plan.
        outcome: of its latest run that says something.
        earlier: whether that run is of an earlier search.
        gain: throughput over the baseline; None if unknown.
        rate_per_s: throughput on the scale of all plans; None if unknown.
        note: why it was not chosen, or "".
        on_front: whether no other measured plan is both faster and lighter.
        peak_bytes: measured peak; None if it was not measured.
    """

    plan: Plan
    outcome: Outcome
    earlier: bool = False
    gain: Ratio | None = None
    rate_per_s: float | None = None
    note: str = ""
    on_front: bool = False
    peak_bytes: int | None = None


def known_plans(recommendation: Recommendation | None, trials: Sequence[Trial]) -> dict[str, KnownPlan]:
    """Returns what is known of each plan by its key, without throughputs: of the trials and the recommendation."""
    found: dict[str, KnownPlan] = {}
    for trial in trials:
        before, outcome = found.get(trial.plan.key), trial.outcome
        if before is not None and outcome.status in _NO_RESULT:
            continue
        if recommendation is None and before is not None and _keeps_probe(before, trial):
            run = "proof" if trial.purpose is Purpose.PROOF else "run in the race"
            reason = f"its {run} was not completed: {outcome.status.value}, {outcome.reason}"
            found[trial.plan.key] = replace(before, note=reason)
            continue
        peak = _peak(outcome.measurement)
        kept = peak if peak is not None or before is None else before.peak_bytes
        found[trial.plan.key] = KnownPlan(trial.plan, outcome, trial.earlier, peak_bytes=kept)
    if recommendation is not None:
        r = recommendation
        for each in (r.baseline, *r.alternatives):
            peak = _peak(each.outcome.measurement)
            found.setdefault(each.plan.key, KnownPlan(each.plan, each.outcome, peak_bytes=peak))
        duration_s = found[r.plan.key].outcome.duration_s if r.plan.key in found else 0.0
        proven = Outcome(status=Status.MEASURED, measurement=r.proof, duration_s=duration_s)
        found[r.plan.key] = KnownPlan(r.plan, proven, peak_bytes=_peak(r.proof))
    return found


def _keeps_probe(before: KnownPlan, trial: Trial) -> bool:
    """Returns whether the probe of a plan says more than this later run of it, which failed for want of time."""
    failed = trial.outcome.status
    return before.outcome.measured and trial.purpose is not Purpose.PROBE and failed is Status.TIMED_OUT


def with_rates(
    known: Mapping[str, KnownPlan], recommendation: Recommendation, objective: Objective
) -> dict[str, KnownPlan]:
    """Returns what is known of each plan with the throughputs of a recommendation."""
    r = recommendation
    proven = Candidate(
        plan=r.plan,
        outcome=Outcome(status=Status.MEASURED, measurement=r.proof),
        gain=r.gain,
        rate_per_s=r.rate_per_s,
        on_front=True,
    )
    candidates = {each.plan.key: each for each in (*r.alternatives, r.baseline, proven)}
    unit_s = _baseline_rate(r, objective)
    raced = any(each.gain is not None and each.gain.pairs for each in candidates.values())
    found = dict(known)
    for key, each in known.items():
        candidate, measurement = candidates.get(key), each.outcome.measurement
        lost = not each.outcome.measured and (candidate is None or candidate.plan != r.baseline.plan)
        if candidate is not None:
            rate = _rate(candidate, r, unit_s, objective)
            found[key] = replace(
                each,
                gain=None if lost else candidate.gain,
                rate_per_s=None if lost else rate,
                note=candidate.note,
                on_front=candidate.on_front and not lost,
            )
        elif not lost and measurement is not None:
            rate = None if raced else objective.score(measurement)
            gain = None if rate is None or not unit_s else _probed(measurement, r.baseline.outcome, objective)
            found[key] = replace(each, rate_per_s=rate, gain=gain, note="" if rate is not None else _OTHER_SCALE)
    return found


def with_probed_rates(
    known: Mapping[str, KnownPlan], baseline: Plan | None, objective: Objective
) -> dict[str, KnownPlan]:
    """Returns what is known of each plan with the throughputs of separate probes: without a recommendation."""
    found = dict(known)
    reference = known.get(baseline.key) if baseline is not None else None
    points = list[FrontPoint]()
    for key, each in known.items():
        measurement = each.outcome.measurement
        if not each.outcome.measured or measurement is None:
            continue
        rate = objective.score(measurement)
        gain = None if reference is None else _probed(measurement, reference.outcome, objective)
        if reference is each:
            gain = Ratio(value=1.0, low=1.0, high=1.0)
        found[key] = replace(each, rate_per_s=rate, gain=gain)
        points += [FrontPoint(key, rate, each.peak_bytes)] if each.peak_bytes else []
    for point in front(points, objective.tie_ratio):
        found[point.key] = replace(found[point.key], on_front=True)
    return found


def rows_of(
    known: Iterable[KnownPlan],
    recommended: Plan | None,
    baseline: Plan | None,
    estimates: Mapping[str, Estimate],
) -> tuple[PlanRow, ...]:
    """Returns the rows: plans with a throughput first, fastest first; then those that came closest to the budget."""
    ordered = sorted(known, key=_order)
    return tuple(
        PlanRow(
            rank=rank,
            label=label_of(each.plan, baseline),
            combination=combination_of(each.plan, baseline),
            values=dict(each.plan.values),
            micro_batch_size=_count(each.plan, MICRO_BATCH_SIZE),
            accumulation_steps=_count(each.plan, ACCUMULATION_STEPS),
            role=_role(each.plan, recommended, baseline),
            is_baseline=each.plan == baseline,
            status=each.outcome.status.value,
            reason=each.note or each.outcome.reason,
            rate_per_s=each.rate_per_s,
            gain=each.gain,
            peak_bytes=each.peak_bytes,
            estimate=estimate if (estimate := estimates.get(each.plan.key)) and estimate.is_bounded else None,
            on_front=each.on_front,
            phases_s={} if each.outcome.measurement is None else each.outcome.measurement.phases_s,
            duration_s=each.outcome.duration_s,
            earlier=each.earlier,
        )
        for rank, each in enumerate(ordered, start=1)
    )


def label_of(plan: Plan, baseline: Plan | None) -> str:
    """Returns a plan in words: its batch and what it changes from the baseline; all its values if that is unknown."""
    return str(plan) if baseline is None else describe_plan(plan, baseline)


def combination_of(plan: Plan, baseline: Plan | None) -> str:
    """Returns what a plan changes from the baseline beside the batch; `BATCH_ONLY` if it changes nothing else."""
    changes = plan.combination.values if baseline is None else plan.combination.changes_from(baseline.combination)
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or BATCH_ONLY


def _order(known: KnownPlan) -> tuple[bool, float, bool, int, str, str]:
    rate, peak = known.rate_per_s, known.peak_bytes
    return rate is None, -(rate or 0.0), peak is None, peak or 0, known.outcome.status.value, known.plan.key


def _role(plan: Plan, recommended: Plan | None, baseline: Plan | None) -> Role:
    if plan == recommended:
        return "recommended"
    return "baseline" if plan == baseline else ""


def _count(plan: Plan, name: str) -> int:
    return int(plan.values.get(name, 1))


def _peak(measurement: Measurement | None) -> int | None:
    """Returns the measured peak; None if the device has no reading."""
    return None if measurement is None else measurement.memory.judged_bytes or None


def _baseline_rate(r: Recommendation, objective: Objective) -> float | None:
    measurement = r.baseline.outcome.measurement if r.baseline.outcome.measured else None
    return None if measurement is None else objective.score(measurement)


def _rate(candidate: Candidate, r: Recommendation, unit_s: float | None, objective: Objective) -> float | None:
    """Returns the throughput of a candidate; of a record without throughputs, its gain times that of the baseline."""
    if r.rate_per_s is not None or candidate.rate_per_s is not None:
        return candidate.rate_per_s
    if candidate.gain is not None and unit_s is not None:
        return candidate.gain.value * unit_s
    measurement = candidate.outcome.measurement
    return None if measurement is None or not candidate.outcome.measured else objective.score(measurement)


def _probed(measurement: Measurement, baseline: Outcome, objective: Objective) -> Ratio | None:
    """Returns the gain by two separate probes; None if the baseline was not measured."""
    if not baseline.measured or baseline.measurement is None:
        return None
    return quotient(measurement, baseline.measurement, objective, DISTURBED_NOISE_RATIO)
