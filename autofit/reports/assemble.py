"""From the records of a search to its Report: the rows, curves, race, memory, and what is missing."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import one_line, printable
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_plan
from autofit.reports.alternatives import rate_per_s, reasons_of, recommended
from autofit.reports.applying import apply_code
from autofit.reports.report import BATCH_ONLY, AnswerTime, LeftOut, PlanMemory, PlanRow, Racer, Report, Role, SpeedCurve
from autofit.reports.sentences import cause, chosen, contradicting_rate, failed_headline, headline
from autofit.reports.sources import Source
from autofit.reports.summary import evaluation_sentences
from autofit.search.choice import DISTURBED_NOISE_RATIO, FrontPoint, front, quotient
from autofit.search.common_scale import CLAIM_RATIO
from autofit.search.evidence import (
    BATCH_CHANGED,
    BLOCK_CUT_OFF,
    FOUND_BY_DOCTOR,
    PROOF_CUT_OFF,
    RaceLog,
    SearchEvidence,
)
from autofit.search.race import MIN_ROUNDS, pair
from autofit.terminal import cut

MOST_LETTERS, MOST_CODE_LETTERS = 600, 4000
"""Maximum length of a text in a report, and of its code and the message of a failed search: texts come from users' code
and may be of any length."""
_LONG = ("apply_code", "command", "failure")


_NO_RESULT = (Status.SKIPPED, Status.INTERRUPTED)
_OTHER_SCALE = "measured, but its throughput is not known on the scale of the race"


class KnownPlan(Candidate):
    """What is known of one plan: of its latest run that says something, and its measured peak.

    `earlier` is whether that run is of an earlier search.
    """

    earlier: bool = False
    peak_bytes: int | None = None


def assembled(source: Source) -> Report:
    """Returns the report of a search. All its texts are printable and limited in length."""
    r, evidence = source.answer, source.evidence
    objective = r.objective if r is not None else evidence.objective if evidence is not None else Objective()
    baseline = r.baseline.plan if r is not None else evidence.baseline if evidence is not None else None
    known = known_plans(r, source.trials)
    known = with_rates(known, r) if r is not None else with_probed_rates(known, baseline, objective)
    estimates = dict(evidence.estimates) if evidence is not None else {}
    if r is not None and r.estimate is not None:
        estimates.setdefault(r.plan.key, r.estimate)
    rows = rows_of(known.values(), None if r is None else r.plan, baseline, estimates)
    reference, race = _race(evidence, r, rows)
    fields: dict[str, Any] = {
        "unit": "tokens" if objective.unit == "tokens" and any(map(_has_tokens, known.values())) else "samples",
        "rows": rows,
        "curves": _curves(rows, source.memory_bytes),
        "race": race,
        "race_reference": reference,
        "answers": () if evidence is None else tuple(_answers(evidence, rows)),
        "memory": () if evidence is None else tuple(_memory(evidence, r)),
        "environment": source.environment,
        "budget_bytes": source.memory_bytes,
        "counts": Counter(trial.outcome.status.value for trial in source.trials),
        "study": source.study,
        "plan_file": source.plan_file,
        "missing": tuple(_missing(source, baseline)),
    }
    if evidence is not None:
        left_out = tuple(
            LeftOut(label=label_of(each.plan, baseline), basis=each.basis.value, reason=each.reason)
            for each in evidence.omissions
        )
        fields |= {"gates": evidence.gates, "stopped": evidence.stopped, "left_out": left_out}
    report = Report(**{**fields, **_of_answer(source)})
    # Texts can be printed, are on one line and cut; code keeps its lines.
    return Report.model_validate(_cleaned(report.model_dump(by_alias=True)))


def _of_answer(source: Source) -> dict[str, Any]:
    """Returns the fields that say what was found and what was asked."""
    r, evidence = source.answer, source.evidence
    asked, fields = r or evidence, dict[str, Any]()
    if asked is not None:
        fields = {
            "command": asked.command,
            "caveats": sorted(asked.caveats, key=_rank),
            "refused": asked.refused,
            "budget_note": asked.budget.memory_note,
        }
    fields["title"] = (asked.title if asked is not None else "") or f"workload {source.environment.workload}"
    if r is None:
        return fields | {
            "feasible": False,
            "headline": failed_headline(evidence, source.trials),
            "cause": cause(evidence, source.trials),
            "failure": "" if evidence is None else evidence.failure,
            "created": "" if evidence is None else evidence.began,
        }
    return fields | {
        "feasible": True,
        "headline": headline(r),
        "chosen": chosen(r),
        "proof_rate_per_s": contradicting_rate(r),
        "apply_code": apply_code(r, source.plan_file),
        "evaluation": evaluation_sentences(r),
        "global_batch_size": r.global_batch(r.plan),
        "duration_s": r.duration_s,
        "strategies": r.strategies,
        "created": r.created,
        **({"counts": r.counts} if r.counts else {}),
    }


def _rank(caveat: str) -> tuple[bool, bool]:
    """Returns a key that sorts a changed batch first and what the doctor found last."""
    return not caveat.startswith(BATCH_CHANGED), caveat.startswith(FOUND_BY_DOCTOR)


def _has_tokens(known: KnownPlan) -> bool:
    return known.outcome.measurement is not None and known.outcome.measurement.tokens_per_step is not None


def _curves(rows: Sequence[PlanRow], memory_bytes: int) -> tuple[SpeedCurve, ...]:
    """Returns the curve of each combination with two measured plans, and of the recommended one; fastest first.

    The recommended combination has a curve however few of its plans were measured, if any other has one.
    """
    groups = defaultdict[str, list[PlanRow]](list)
    for row in rows:
        groups[row.combination].append(row)
    found = list[SpeedCurve]()
    for combination, members in groups.items():
        rated = (row for row in members if row.rate_per_s is not None)
        measured = sorted(rated, key=lambda row: (row.micro_batch_size, row.accumulation_steps))
        if len(measured) > 1 or (measured and any(row.role == "recommended" for row in members)):
            refused = {
                row.micro_batch_size
                for row in members
                if Status(row.status).does_not_fit
                or (row.status == Status.SKIPPED.value and (row.expected_bytes or 0) > memory_bytes)
            }
            ranks = tuple(row.rank for row in measured)
            found.append(SpeedCurve(combination=combination, ranks=ranks, refused_sizes=tuple(sorted(refused))))
    return tuple(found) if any(len(curve.ranks) > 1 for curve in found) else ()


def _race(evidence: SearchEvidence | None, r: Answer | None, rows: Sequence[PlanRow]) -> tuple[Role, tuple[Racer, ...]]:
    """Returns the plan that the others are compared with, and the others."""
    logs = {log.plan.key: log for log in evidence.race} if evidence is not None and r is not None else {}
    role: Role = "baseline" if r is not None and r.baseline.plan.key in logs else "recommended"
    plan = None if r is None else r.baseline.plan if role == "baseline" else r.plan
    if r is None or plan is None or plan.key not in logs:  # the race as far as gains show it, without its rounds
        others = [row for row in rows if not row.is_baseline]
        by_gain = tuple(Racer(rank=row.rank, ratio=row.gain) for row in others if row.gain and row.gain.pairs)
        return ("baseline", by_gain) if by_gain else ("", ())
    found, reasons = list[Racer](), {r.plan.key: "", **reasons_of(r)}
    for row in rows:
        log = logs.get(Plan(values=row.values).key)
        if log is None or log.plan == plan:
            continue
        ours, theirs = _common(log, logs[plan.key])
        claimed = pair(ours, theirs).ratio().widened(CLAIM_RATIO) if len(ours) >= MIN_ROUNDS else None
        ratio, shift = row.gain if role == "baseline" else claimed, 0.0
        if role == "baseline" and r.gain is not None and log.plan != r.plan and r.plan.key in logs:
            # The gain of a plan is its ratio to the recommended plan times that plan's gain (`CommonScale.anchor`).
            with_best = _common(log, logs[r.plan.key])
            if len(with_best[0]) >= MIN_ROUNDS:
                (ours, theirs), shift = with_best, math.log(r.gain.value)
        if ratio is not None and ratio.pairs:
            ratios = tuple(math.exp(a - b + shift) for a, b in zip(ours, theirs, strict=True))
            found.append(Racer(rank=row.rank, ratio=ratio, ratios=ratios, note=reasons.get(log.plan.key, log.note)))
    return (role, tuple(found)) if found else ("", ())


def _common(one: RaceLog, other: RaceLog) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the log throughputs of the rounds that both ran."""
    began = max(one.joined, other.joined)
    first, second = (log.log_rates[began - log.joined :] for log in (one, other))
    count = min(len(first), len(second))
    return first[:count], second[:count]


def _answers(evidence: SearchEvidence, rows: Sequence[PlanRow]) -> Iterator[AnswerTime]:
    """Yields the answers of a search at the throughput of their rows; at that of a probe if a later proof failed."""
    by_key = {Plan(values=row.values).key: row for row in rows}
    baseline_per_s = next((row.rate_per_s for row in rows if row.is_baseline), None)
    for each in evidence.answers:
        if (row := by_key.get(each.plan.key)) is None:
            continue
        ratio, rate_per_s = row.gain.value if row.gain is not None else each.ratio, row.rate_per_s
        if rate_per_s is None and baseline_per_s is not None and ratio is not None:
            rate_per_s = ratio * baseline_per_s
        if rate_per_s is not None:
            yield AnswerTime(at_s=each.at_s, rank=row.rank, rate_per_s=rate_per_s, ratio=ratio)


def _memory(evidence: SearchEvidence, r: Answer | None) -> Iterator[PlanMemory]:
    role: Role = "baseline" if r is None else "recommended"
    plan = evidence.baseline if r is None else r.plan
    if evidence.profile is not None:
        yield PlanMemory(role=role, label=label_of(plan, evidence.baseline), profile=evidence.profile)
    if evidence.baseline_profile is not None:
        label = label_of(evidence.baseline, evidence.baseline)
        yield PlanMemory(role="baseline", label=label, profile=evidence.baseline_profile)


def _missing(source: Source, baseline: Plan | None) -> Iterator[str]:
    yield from source.missing
    if baseline is None:
        yield "gains: the study does not say which plan is the baseline"
    evidence = source.evidence
    if evidence is not None and (evidence.stopped or evidence.failure) and evidence.profile is None:
        which = "the baseline" if source.answer is None else "the recommended plan"
        yield f"memory of {which} by kind and over a step: it could not be traced, or there was no time"


def _cleaned(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        if name not in _LONG:
            return cut(one_line(value), MOST_LETTERS)
        text = printable(value)
        return text if len(text) <= MOST_CODE_LETTERS else f"{text[:MOST_CODE_LETTERS]} ..."
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return value if value and isinstance(value[0], int | float) else tuple(_cleaned(each) for each in value)
    return value


def known_plans(answer: Answer | None, trials: Sequence[Trial]) -> dict[str, KnownPlan]:
    """Returns what is known of each plan by its key, without throughputs: of the trials and the answer."""
    found: dict[str, KnownPlan] = {}
    for trial in trials:
        before, outcome = found.get(trial.plan.key), trial.outcome
        if before is not None and outcome.status in _NO_RESULT:
            continue
        late = trial.purpose is not Purpose.PROBE and outcome.status is Status.TIMED_OUT
        if before is not None and before.outcome.measured and late:  # its probe says more than this later run
            how = PROOF_CUT_OFF if trial.purpose is Purpose.PROOF else BLOCK_CUT_OFF
            note = f"{how}: {outcome.status.value}, {outcome.reason}"
            found[trial.plan.key] = before.model_copy(update={"note": note})
            continue
        known = _known(trial.plan, outcome, trial.earlier)
        if known.peak_bytes is None and before is not None:
            known = known.model_copy(update={"peak_bytes": before.peak_bytes})
        found[trial.plan.key] = known
    if answer is not None:
        for each in (answer.baseline, *answer.alternatives):
            found.setdefault(each.plan.key, _known(each.plan, each.outcome))
        key, proven = answer.plan.key, recommended(answer).outcome
        if key in found:
            proven = proven.model_copy(update={"duration_s": found[key].outcome.duration_s})
        found[key] = _known(answer.plan, proven)
    return found


def _known(plan: Plan, outcome: Outcome, earlier: bool = False) -> KnownPlan:
    measurement = outcome.measurement
    peak_bytes = None if measurement is None else measurement.memory.judged_bytes or None  # 0: no reading
    return KnownPlan(plan=plan, outcome=outcome, earlier=earlier, peak_bytes=peak_bytes)


def with_rates(known: Mapping[str, KnownPlan], r: Answer) -> dict[str, KnownPlan]:
    """Returns what is known of each plan with the throughputs of an answer."""
    candidates = {each.plan.key: each for each in (*r.alternatives, r.baseline, recommended(r))}
    raced = any(each.gain is not None and each.gain.pairs for each in candidates.values())
    found = dict(known)
    for key, each in known.items():
        candidate, measurement = candidates.get(key), each.outcome.measurement
        update: dict[str, Any] = {"note": each.note if candidate is None else candidate.note or each.note}
        if not each.outcome.measured and (candidate is None or candidate.plan != r.baseline.plan):
            pass
        elif candidate is not None:
            rate = rate_per_s(r, candidate)
            update |= {"gain": candidate.gain, "rate_per_s": rate, "on_front": candidate.on_front}
        elif raced:
            update["note"] = each.note or _OTHER_SCALE
        elif measurement is not None:
            gain = _probed(measurement, r.baseline.outcome, r.objective)
            update |= {"gain": gain, "rate_per_s": r.objective.score(measurement)}
        found[key] = each.model_copy(update=update)
    return found


def with_probed_rates(
    known: Mapping[str, KnownPlan], baseline: Plan | None, objective: Objective
) -> dict[str, KnownPlan]:
    """Returns what is known of each plan with the throughputs of separate probes: without an answer."""
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
        found[key] = each.model_copy(update={"rate_per_s": rate, "gain": gain})
        points += [FrontPoint(key, rate, each.peak_bytes)] if each.peak_bytes else []
    for point in front(points, objective.tie_ratio):
        found[point.key] = found[point.key].model_copy(update={"on_front": True})
    return found


def rows_of(
    known: Iterable[KnownPlan], chosen_plan: Plan | None, baseline: Plan | None, estimates: Mapping[str, Estimate]
) -> tuple[PlanRow, ...]:
    """Returns the rows: plans with a throughput first, fastest first; then those that came closest to the budget."""

    def order(each: KnownPlan) -> tuple[bool, float, bool, int, str, str]:
        rate, peak = each.rate_per_s, each.peak_bytes
        return rate is None, -(rate or 0.0), peak is None, peak or 0, each.outcome.status.value, each.plan.key

    return tuple(
        PlanRow(
            rank=rank,
            label=label_of(each.plan, baseline),
            combination=combination_of(each.plan, baseline),
            values=dict(each.plan.values),
            micro_batch_size=int(each.plan.values.get(MICRO_BATCH_SIZE, 1)),
            accumulation_steps=int(each.plan.values.get(ACCUMULATION_STEPS, 1)),
            role="recommended" if each.plan == chosen_plan else "baseline" if each.plan == baseline else "",
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
        for rank, each in enumerate(sorted(known, key=order), start=1)
    )


def label_of(plan: Plan, baseline: Plan | None) -> str:
    """Returns a plan in words: its batch and what it changes from the baseline; all its values if that is unknown."""
    return str(plan) if baseline is None else describe_plan(plan, baseline)


def combination_of(plan: Plan, baseline: Plan | None) -> str:
    """Returns what a plan changes from the baseline beside the batch; `BATCH_ONLY` if it changes nothing else."""
    changes = plan.combination.values if baseline is None else plan.combination.changes_from(baseline.combination)
    return ", ".join(f"{name}={value}" for name, value in changes.items()) or BATCH_ONLY


def _probed(measurement: Measurement, baseline: Outcome, objective: Objective) -> Ratio | None:
    """Returns the gain by two separate probes; None if the baseline was not measured."""
    if not baseline.measured or baseline.measurement is None:
        return None
    return quotient(measurement, baseline.measurement, objective, DISTURBED_NOISE_RATIO)
