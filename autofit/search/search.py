"""One search, from briefing to recommendation: opens the study, chooses searcher and estimator, runs the loop.

Never loads torch: the command line runs it in a process that does not know the user's code.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autofit import estimators, locks
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
from autofit.core.errors import AutofitError
from autofit.core.objective import Objective
from autofit.core.recommendation import Candidate, Recommendation
from autofit.core.space import SearchSpace
from autofit.core.units import format_duration
from autofit.estimators import Context
from autofit.search.bench import Bench
from autofit.search.event import Event
from autofit.search.phases import run
from autofit.search.request import DEFAULT_STUDY, Listen, Request, searcher_of
from autofit.search.tuning import Findings, Tuning
from autofit.search.witness import Witness, asked
from autofit.study import Study, optuna_imports, writing

PREPARING_RATIO, TRACING_RATIO, TRACING_S = 0.25, 0.2, 120.0
"""Shares of the time budget: of all that comes before the first probe, gates included, and of estimating memory; and
the most seconds for the latter."""
CLOSING_RATIO = 0.6
"""Share of the time left, at most, that is kept for the start of a proof: it takes as long as the opening took."""


@optuna_imports.released
def search(bench: Bench, request: Request, listen: Sequence[Listen] = (), clock: Clock | None = None) -> Recommendation:
    """Searches the space of a bench and returns the proven recommendation.

    Args:
        bench: the workload on its device.
        request: what the caller wants.
        listen: called with each event, for progress.
        clock: running since the call began; time spent on opening the bench counts.

    Raises:
        AutofitError: see `autofit.search.phases.run` and `autofit.study.Study.open`.
    """
    clock, briefing = clock or Clock(), bench.briefing
    request = replace(request, objective=_planned(request, briefing))
    location = DEFAULT_STUDY if request.study is None else request.study
    name = f"{briefing.environment.workload}-{request.objective.unit}"
    left_s = None if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)

    def tell_all(event: Event) -> None:
        for listener in listen:
            listener(event)

    with writing(location, name, locks.patience_s(left_s), lambda text: tell_all(Event("stage", text))):
        study = Study.open(
            location,
            name=name,
            environment=briefing.environment,
            space=briefing.space,
            objective=request.objective,
            memory_bytes=briefing.budget.memory_bytes,
        )
        return _search(bench, request, study, clock, tell_all)


def _search(bench: Bench, request: Request, study: Study, clock: Clock, listen: Listen) -> Recommendation:
    briefing = bench.briefing
    budget = briefing.budget.model_copy(update={"time_s": request.time_s, "max_trials": request.max_trials})
    context = Context(
        limit_bytes=budget.memory_bytes,
        account=briefing.account,
        allowance_s=tracing_s(budget.time_s, clock.elapsed_s),
        trace=bench.trace,
        record=bench.record,
    )
    made = [estimator for member in estimators.members() if (estimator := member.of(context)) is not None]
    left_s = math.inf if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)
    witness = Witness(asked(briefing, budget, request.objective, request, study.notes), study.note, made, listen)
    tuning = Tuning(
        space=SearchSpace(briefing.space),
        evaluate=bench.evaluate,
        objective=request.objective,
        budget=budget,
        log=study,
        searcher=searcher_of(request.searcher),
        estimators=made,
        clock=clock,
        listen=witness.tell,
        seed=request.seed,
        isolated=request.isolated,
        closing_s=min(bench.proof_start_s, CLOSING_RATIO * left_s),
        cautious=not briefing.enforced and briefing.environment.is_host,
        seen=witness.seen,
    )
    try:
        findings = run(tuning)
    except AutofitError as error:
        witness.failed(error)
        raise
    found = _recommendation(findings, briefing, budget, request, study, clock)
    if said := tuple(estimator.caveat for estimator in made if estimator.caveat):
        found = found.model_copy(update={"caveats": (*found.caveats, *said)})
    witness.found(found)
    return found


def _planned(request: Request, briefing: Briefing) -> Objective:
    """Returns the objective with the samples of the planned training, which are the same whatever a plan's batch."""
    if request.planned_steps is None:
        return request.objective
    samples = request.planned_steps * briefing.space.baseline.global_batch_size
    return request.objective.model_copy(update={"planned_samples": samples})


def tracing_s(time_s: float | None, spent_s: float) -> float:
    """Returns the seconds that may go into estimating memory, of a time budget of which some is spent already.

    With nothing left of the share that comes before the first probe, the user's own plan alone is traced.
    """
    if time_s is None:
        return TRACING_S
    return max(min(PREPARING_RATIO * time_s - spent_s, TRACING_RATIO * time_s, TRACING_S), 0.0)


def _recommendation(
    findings: Findings, briefing: Briefing, budget: Budget, request: Request, study: Study, clock: Clock
) -> Recommendation:
    # The most important first: doubts about the answer, what to change with it, then how it was found.
    answer = [*findings.caveats, *_learning_rate(findings, briefing), *_data_bound(findings)]
    caveats = [*answer, *study.notes, *briefing.caveats]
    fields: dict[str, Any] = {
        "plan": findings.plan,
        "proof": findings.proof,
        "estimate": findings.estimate,
        "baseline": _without_traceback(findings.baseline),
        "gain": findings.gain,
        "rate_per_s": findings.rate_per_s,
        "untried": findings.untried,
        "alternatives": findings.alternatives,
        "caveats": tuple(dict.fromkeys(caveats)),
        "refused": briefing.space.refused,
        "budget": budget,
        "objective": request.objective,
        "environment": briefing.environment,
        "study": study.location,
        "title": request.title,
        "command": request.command,
        "counts": findings.counts,
        "duration_s": round(clock.elapsed_s, 2),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return Recommendation(**fields)


def _without_traceback(candidate: Candidate) -> Candidate:
    """Returns a candidate for a plan file, which is shared: the user's source lines stay in their study."""
    return candidate.model_copy(update={"outcome": candidate.outcome.model_copy(update={"traceback_text": ""})})


def _learning_rate(findings: Findings, briefing: Briefing) -> list[str]:
    """Returns the note that a changed global batch needs."""
    own, new = briefing.space.baseline.global_batch_size, findings.plan.global_batch_size
    if own == new or briefing.environment.settings.get("mode") == "inference":
        return []
    return [
        f"the global batch was free and changed from {own} to {new}: the learning rate and the number of steps want "
        "another look (common rules scale the rate with the batch, or with its square root). "
        "Give global_batch_size to keep it exactly, or max_global_batch_size to bound it"
    ]


def _data_bound(findings: Findings) -> list[str]:
    fetch, step = findings.proof.fetch_s, findings.proof.step_time_s
    if fetch is None or fetch <= 0.1 * step:
        return []
    workers = math.ceil(fetch / step)
    return [
        f"making the samples of one step took {format_duration(fetch)} beside {format_duration(step)} of training: the "
        f"loader wants about {workers} worker process{'es' if workers > 1 else ''}, or it will hold the training back"
    ]
