"""One search, from briefing to recommendation: opens the study, chooses searcher and estimator, runs the loop.

Never loads torch: the command line runs it in a process that does not know the user's code.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autofit import estimators, locks, searchers
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
from autofit.core.errors import UsageError
from autofit.core.event import Event
from autofit.core.objective import Objective
from autofit.core.recommendation import Candidate, Recommendation
from autofit.core.space import SearchSpace
from autofit.core.units import format_duration
from autofit.estimators import Context, Tracer
from autofit.search.phases import run
from autofit.search.tuning import Evaluate, Findings, Tuning
from autofit.searchers.base import Searcher
from autofit.study import Study, writing
from autofit.study import optuna_imports as frames

PREPARING_RATIO, TRACING_RATIO, TRACING_S = 0.25, 0.2, 120.0
"""Shares of the time budget: of all that comes before the first probe, gates included, and of predicting memory; and
the most seconds for the latter."""
CLOSING_RATIO = 0.6
"""Share of the time left, at most, that is kept for the start of a proof: it takes as long as the opening took."""
DEFAULT_STUDY = Path(".autofit") / "study.db"

Listen = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants of a search, beside what the bench was opened with.

    Attributes:
        time_s: seconds for everything; None for no limit.
        max_trials: probes at most; None for no limit.
        study: where trials are kept: a path, an Optuna storage URL, ":memory:", or None for `DEFAULT_STUDY`.
        searcher: name of the searcher; None for the default.
        objective: what is maximised.
        planned_steps: optimizer steps of the planned training, at the user's own global batch: what a plan's first
            steps take longer is charged to as many samples. None charges nothing.
        seed: makes the search repeatable.
        isolated: whether plans run in a process that is replaced when its device is poisoned.

    Raises:
        UsageError: there is no such searcher, or the planned steps are no whole number of at least 1.
    """

    time_s: float | None = None
    max_trials: int | None = None
    study: str | Path | None = None
    searcher: str | None = None
    objective: Objective = field(default_factory=Objective)
    planned_steps: int | None = None
    seed: int = 0
    isolated: bool = False

    def __post_init__(self) -> None:
        _searcher(self.searcher)  # a misspelt name is refused before anything is opened
        if self.planned_steps is not None and (type(self.planned_steps) is not int or self.planned_steps < 1):
            raise UsageError(
                f"found planned_steps={self.planned_steps!r}; expected the optimizer steps of your training, a whole "
                "number of at least 1, or none to charge nothing for the first steps."
            )


@frames.released
def search(
    briefing: Briefing,
    evaluate: Evaluate,
    request: Request,
    listen: Sequence[Listen] = (),
    clock: Clock | None = None,
    tracer: Tracer | None = None,
    recorder: Tracer | None = None,
    closing_s: float = 0.0,
) -> Recommendation:
    """Searches the space of `briefing` and returns the proven recommendation.

    Args:
        briefing: what the bench found.
        evaluate: runs a plan; `Bench.evaluate` or `RemoteBench.evaluate`.
        request: what the caller wants.
        listen: called with each event, for progress.
        clock: running since the call began; time spent on opening the bench counts.
        tracer: traces a plan; `Bench.trace` or `RemoteBench.trace`. None: memory is learned from probes alone.
        recorder: runs a few steps of what cannot be traced; `LocalBench.record` or `RemoteBench.record`.
        closing_s: seconds that a proof takes before it begins; `RemoteBench.proof_start_s`.

    Raises:
        AutofitError: see `autofit.search.phases.run` and `autofit.study.Study.open`.
    """
    clock = clock or Clock()
    request = replace(request, objective=_planned(request, briefing))
    location = DEFAULT_STUDY if request.study is None else request.study
    name = f"{briefing.environment.workload}-{request.objective.unit}"
    left_s = None if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)
    closing_s = closing_s if left_s is None else min(closing_s, CLOSING_RATIO * left_s)
    opening = _Opening(location, name, tracer, recorder, closing_s)
    with writing(location, name, locks.patience_s(left_s), lambda text: _tell_all(listen, Event("stage", text))):
        return _search(briefing, evaluate, request, listen, clock, opening)


@dataclass(frozen=True, slots=True)
class _Opening:
    """Where trials are kept, what looks at memory before anything runs, and what closing takes; see `search`."""

    location: str | Path
    name: str
    tracer: Tracer | None
    recorder: Tracer | None
    closing_s: float


def _search(
    briefing: Briefing,
    evaluate: Evaluate,
    request: Request,
    listen: Sequence[Listen],
    clock: Clock,
    opening: _Opening,
) -> Recommendation:
    budget = briefing.budget.model_copy(update={"time_s": request.time_s, "max_trials": request.max_trials})
    study = Study.open(
        opening.location,
        name=opening.name,
        environment=briefing.environment,
        space=briefing.space,
        objective=request.objective,
        memory_bytes=budget.memory_bytes,
    )
    context = Context(
        limit_bytes=budget.memory_bytes,
        account=briefing.account,
        allowance_s=tracing_s(budget.time_s, clock.elapsed_s),
        trace=opening.tracer,
        record=opening.recorder,
    )
    made = [estimator for member in estimators.MEMBERS if (estimator := member.of(context)) is not None]
    tuning = Tuning(
        space=SearchSpace(briefing.space),
        evaluate=evaluate,
        objective=request.objective,
        budget=budget,
        log=study,
        searcher=_searcher(request.searcher),
        estimators=made,
        clock=clock,
        listen=lambda event: _tell_all(listen, event),
        seed=request.seed,
        isolated=request.isolated,
        closing_s=opening.closing_s,
        cautious=not briefing.enforced and briefing.environment.device_type == "cpu",
    )
    findings = run(tuning)
    found = _recommendation(findings, briefing, budget, request, study, clock)
    said = tuple(estimator.caveat for estimator in made if estimator.caveat)
    return found.model_copy(update={"caveats": (*found.caveats, *said)}) if said else found


def _planned(request: Request, briefing: Briefing) -> Objective:
    """Returns the objective with the samples of the planned training, which are the same whatever a plan's batch."""
    if request.planned_steps is None:
        return request.objective
    samples = request.planned_steps * briefing.space.baseline.global_batch_size
    return request.objective.model_copy(update={"planned_samples": samples})


def tracing_s(time_s: float | None, spent_s: float) -> float:
    """Returns the seconds that may go into predicting memory, of a time budget of which some is spent already.

    With nothing left of the share that comes before the first probe, the user's own plan alone is traced.
    """
    if time_s is None:
        return TRACING_S
    return max(min(PREPARING_RATIO * time_s - spent_s, TRACING_RATIO * time_s, TRACING_S), 0.0)


def _searcher(name: str | None) -> type[Searcher]:
    if name is None:
        return searchers.MEMBERS[0]
    for member in searchers.MEMBERS:
        if member.name == name:
            return member
    known = ", ".join(member.name for member in searchers.MEMBERS)
    raise UsageError(f"unknown searcher {name!r}; expected one of {known}.")


def _tell_all(listeners: Sequence[Listen], event: Event) -> None:
    for listener in listeners:
        listener(event)


def _recommendation(
    findings: Findings, briefing: Briefing, budget: Budget, request: Request, study: Study, clock: Clock
) -> Recommendation:
    caveats = [*briefing.caveats, *study.notes, *_learning_rate(findings, briefing), *findings.caveats]
    fields: dict[str, Any] = {
        "plan": findings.plan,
        "proof": findings.proof,
        "predicted": findings.predicted,
        "baseline": _without_traceback(findings.baseline),
        "gain": findings.gain,
        "rate_per_s": findings.rate_per_s,
        "untried": findings.untried,
        "alternatives": findings.alternatives,
        "caveats": tuple(dict.fromkeys([*caveats, *_data_bound(findings)])),
        "refused": briefing.space.refused,
        "budget": budget,
        "objective": request.objective,
        "environment": briefing.environment,
        "study": study.location,
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
