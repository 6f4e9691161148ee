"""One search, from briefing to answer: opens the study, makes searcher and estimators, keeps the evidence of the end.

Never loads torch: the command line runs it in a process that does not import the user's code.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from autofit import estimators, locks
from autofit.core.answer import Answer, Candidate
from autofit.core.briefing import Briefing, GateRecord
from autofit.core.budget import Budget, Clock
from autofit.core.environment import WEIGHING, Environment
from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, StudyError
from autofit.core.objective import Objective
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.space import Effect, SearchSpace, StrategyRecord
from autofit.core.units import format_duration
from autofit.core.wording import describe_plan
from autofit.estimators import Context
from autofit.estimators.base import Estimator
from autofit.memory.profile import Profile
from autofit.search.choice import DEVICE_NOISE_RATIO, DISTURBED_NOISE_RATIO
from autofit.search.evidence import (
    BATCH_CHANGED,
    CLOSED,
    LEARNING_RATE_RULE,
    OPENED,
    Placing,
    SearchEvidence,
    SearchResult,
    Seen,
    notes_of,
)
from autofit.search.explanations import loading_caveats
from autofit.search.loop import Loop
from autofit.search.race_and_proof import Final
from autofit.search.request import DEFAULT_STUDY, Event, Listen, Request, searcher_of
from autofit.search.tuning import Bench, Findings, Tuning
from autofit.study import Study
from autofit.study.location import writing

TRACING_RATIO, TRACING_S = 0.2, 120.0
"""Limits on the time for estimating memory: this share of the time left, and this many seconds."""
PLANNED_STEPS = 10_000
"""Optimizer steps of the planned training if the user gives none and the space has techniques that must warm up, such
as compilation. That is minutes to hours of training, the range in which the cost of compiling decides."""
LEAST_WAIT_S = 1.0
"""Shortest wait for the device that is reported."""
_CHANGES: Effect = "changes the result"

Note = Callable[[str, dict[str, object]], None]
"""Keeps a value beside the trials, under a name."""


class SearchInterrupted(KeyboardInterrupt):
    """The user stopped a search that has an answer.

    Attributes:
        answer: the answer.
        fit: the same as a `Fit`, if the search was started by `autofit.tune`; else None.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.stopped)
        self.answer = answer
        self.fit: object | None = None


class EvidenceRecorder:
    """Collects the evidence of one search. A failure here never costs the answer: the listener receives a message.

    Attributes:
        seen: filled by the search while it runs.
    """

    def __init__(self, asked: SearchEvidence, note: Note, estimators: Sequence[Estimator], listen: Listen) -> None:
        self._asked, self._note, self._estimators, self._listen = asked, note, estimators, listen
        self.seen, self._done = Seen(), 0
        self._keep(asked, OPENED)
        text = f"searching plans for {asked.title or 'the workload'}"
        self._listen(Event("start", text, asked=asked))

    def tell(self, event: Event) -> None:
        """Passes an event of the search on."""
        self._done = event.done
        self._listen(event)

    def show(self, plan: Plan) -> None:
        """Traces the recommended plan, unless the search did, for its profile and for advice on its memory."""
        with self._harmless(f"{self._named(plan)} was not traced for the report"):
            if self._profile(plan) is None:
                self._say(f"tracing {self._named(plan)} for the report")
                for estimator in self._estimators:
                    estimator.show(plan)

    @contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """Reports an error inside: the answer matters more than what is shown with it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._say(f"{what}: {type(error).__name__}: {error}")

    def _named(self, plan: Plan) -> str:
        return describe_plan(plan, self._asked.baseline)

    def found(self, answer: Answer) -> None:
        """Keeps the evidence for an answer, and tells the listener both."""
        text = f"recommended: {self._named(answer.plan)}"
        self._listen(Event("result", text, done=self._done, result=self._result(answer, None)))

    def failed(self, error: AutofitError) -> None:
        """Keeps the evidence of a search that ends with an error, and tells the listener."""
        result = self._result(None, error)
        try:
            self._listen(Event("result", "no plan is recommended", done=self._done, result=result))
        except Exception as lesser:  # noqa: BLE001  # the caller raises the error that ended the search
            error.add_note(f"a listener failed too: {type(lesser).__name__}: {lesser}")

    def _result(self, answer: Answer | None, failed: AutofitError | None) -> SearchResult:
        ended = {} if failed is None else {"failure": str(failed), "failure_code": failed.exit_code}
        kept = None if answer is None else answer.model_copy(update={"alternatives": ()})
        evidence = self._asked.model_copy(update={**ended, "answer": kept})
        with self._harmless("the evidence for the report is incomplete"):
            evidence = self._evidence(answer, evidence)
        self._keep(evidence, CLOSED)
        return SearchResult(answer, evidence, tuple(self.seen.trials))

    def _evidence(self, answer: Answer | None, asked: SearchEvidence) -> SearchEvidence:
        seen, baseline, r = self.seen, self._asked.baseline, answer
        others = () if r is None else r.alternatives
        verdicts = seen.verdicts.items()
        return asked.model_copy(
            update={
                "stopped": seen.stopped,
                "gates": tuple(GateRecord(name=name, passed=v.passed, reason=v.reason) for name, v in verdicts),
                "refused": (*seen.refused, *asked.refused),
                "standings": tuple(Placing(**each.model_dump(exclude={"outcome"})) for each in others),
                "estimates": {key: estimate for key, estimate in seen.estimates.items() if estimate.is_bounded},
                "race": tuple(seen.race_logs()),
                "omissions": tuple(seen.omissions),
                "answers": tuple(seen.answers),
                "profile": self._profile(baseline if r is None else r.plan),
                "baseline_profile": None if r is None or r.plan == baseline else self._profile(baseline),
            }
        )

    def _profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace; None if it was not traced."""
        found = (estimator.profile(plan) for estimator in self._estimators)
        return next((profile for profile in found if profile is not None), None)

    def _keep(self, evidence: SearchEvidence, name: str) -> None:
        with self._harmless("the evidence for the report was not kept"):
            for part, value in notes_of(evidence, name).items():
                self._note(part, value)

    def _say(self, text: str) -> None:
        self._listen(Event("stage", text, done=self._done))


def asked(briefing: Briefing, budget: Budget, request: Request, notes: Sequence[str]) -> SearchEvidence:
    """Returns what a search is asked, as the evidence that there is when it begins."""
    return SearchEvidence(
        began=datetime.now(UTC).isoformat(),
        title=request.title,
        command=request.command,
        baseline=briefing.space.baseline,
        budget=budget,
        objective=request.objective,
        environment=briefing.environment,
        refused=briefing.space.refused,
        caveats=(*briefing.caveats, *notes),
    )


def search(bench: Bench, request: Request, listen: Sequence[Listen] = (), clock: Clock | None = None) -> Answer:
    """Searches the space of a bench and returns the proven answer.

    Args:
        bench: the workload on its device.
        request: the options of the search.
        listen: called with each event, for progress.
        clock: clock that runs since the call began, so that the time for opening the bench counts.

    Raises:
        AutofitError: see `run` and `autofit.study.Study`.
    """
    clock, briefing = clock or Clock(), bench.briefing
    request = replace(request, objective=_planned(request, briefing))
    location = DEFAULT_STUDY if request.study is None else request.study
    name = f"{briefing.environment.workload}-{request.objective.unit}"
    left_s = None if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)

    def tell_all(event: Event) -> None:
        for listener in listen:
            listener(event)

    with (
        writing(location, name, locks.patience_s(left_s), lambda text: tell_all(Event("busy", text))),
        ExitStack() as opened,
    ):
        study = Study(
            location,
            name=name,
            environment=briefing.environment,
            space=briefing.space,
            objective=request.objective,
            memory_bytes=briefing.budget.memory_bytes,
        )
        opened.callback(study.close)
        return _search(bench, request, study, clock, tell_all)


def run(tuning: Tuning) -> Findings:
    """Searches, races the finalists and proves the winner. Once there is an answer, it is returned whatever happens.

    An error or an interrupt of the user then only ends the search (`Findings.stopped`, `Findings.interrupted`).

    Raises:
        NothingFits: no plan ran inside the memory budget, or none could be proven.
        UserCodeError: the user's code failed with the baseline and with another plan.
        NonFiniteLoss: the baseline gives a loss that is not finite.
        BudgetSpent: the time or the trials were used up before any plan was measured.
        WorkloadError: no plan could be measured for reasons other than memory.
        DevicePoisoned: the device answers every call with an error; with an answer, only of a device in this process.
        RestoreError: the user's objects could not be restored.
        StudyError: the study cannot be written.
        KeyboardInterrupt: the user stopped the search before there was an answer; the running trial is recorded.
    """
    loop = Loop(tuning)
    final: Final | None = None
    try:
        loop.search()
        final = Final(loop)
        final.settle()
    except (KeyboardInterrupt, AutofitError) as error:
        loop.answers.fall_back()
        # On a poisoned device of this process nothing can be put back, so that the user has no model to train any more.
        lost = isinstance(error, DevicePoisoned) and not tuning.isolated
        if loop.answers.best is None or lost or isinstance(error, RestoreError | StudyError):
            raise
        loop.stop(error)
    return (final or Final(loop)).findings()


def _search(bench: Bench, request: Request, study: Study, clock: Clock, listen: Listen) -> Answer:
    briefing = bench.briefing
    budget = briefing.budget.model_copy(update={"time_s": request.time_s, "max_trials": request.max_trials})
    made = _estimators(bench, budget, clock)
    recorder = EvidenceRecorder(asked(briefing, budget, request, study.notes), study.note, made, listen)
    tuning = _tuning(bench, budget, request, study, clock, made, recorder)
    try:
        findings = run(tuning)
    except AutofitError as error:
        recorder.failed(error)
        raise
    if not findings.interrupted:
        recorder.show(findings.plan)
    caveats = [estimator.caveat for estimator in made if estimator.caveat]
    found = _answer(findings, briefing, budget, request, study, clock, caveats)
    recorder.found(found)
    if findings.interrupted:
        raise SearchInterrupted(found)
    return found


def _tuning(
    bench: Bench,
    budget: Budget,
    request: Request,
    study: Study,
    clock: Clock,
    made: Sequence[estimators.Estimator],
    recorder: EvidenceRecorder,
) -> Tuning:
    """Returns the arguments of the search."""
    briefing = bench.briefing
    held = json.dumps([briefing.environment.model_dump(mode="json"), briefing.space.baseline.key], sort_keys=True)
    return Tuning(
        space=SearchSpace(briefing.space),
        evaluate=bench.evaluate,
        objective=request.objective,
        budget=budget,
        log=study,
        searcher=searcher_of(request.searcher),
        estimators=made,
        clock=clock,
        listen=recorder.tell,
        seed=request.seed,
        isolated=request.isolated,
        proof_start_s=bench.proof_start_s,
        cautious=not briefing.enforced and briefing.environment.is_host,
        seen=recorder.seen,
        noise_ratio=DISTURBED_NOISE_RATIO if briefing.environment.is_host else DEVICE_NOISE_RATIO,
        check=bench.check,
        checked_as=hashlib.sha256(held.encode()).hexdigest()[:16],
    )


def _estimators(bench: Bench, budget: Budget, clock: Clock) -> list[estimators.Estimator]:
    """Makes the estimators that this workload has what they need for."""
    context = Context(
        limit_bytes=budget.memory_bytes,
        account=bench.briefing.account,
        allowance_s=tracing_s(budget.time_s, clock.elapsed_s),
        trace=bench.trace,
    )
    return [estimator for member in estimators.members() if (estimator := member.of(context)) is not None]


def _planned(request: Request, briefing: Briefing) -> Objective:
    """Returns the objective with the samples of the planned training, which are independent of a plan's batch."""
    steps = request.planned_steps
    if steps is None and any(knob.warm_up_s for knob in briefing.space.knobs):
        steps = PLANNED_STEPS
    if steps is None:
        return request.objective
    samples = steps * briefing.space.baseline.global_batch_size
    return request.objective.model_copy(update={"planned_samples": samples})


def tracing_s(time_s: float | None, spent_s: float) -> float:
    """Returns the seconds for estimating memory. If nothing is left of the time, only the baseline is traced."""
    if time_s is None:
        return TRACING_S
    return max(min(TRACING_RATIO * (time_s - spent_s), TRACING_S), 0.0)


def _answer(
    findings: Findings,
    briefing: Briefing,
    budget: Budget,
    request: Request,
    study: Study,
    clock: Clock,
    estimating: Sequence[str],
) -> Answer:
    # The most important first: what to change with the answer, doubts about it, then how it was found.
    answer = [
        *_learning_rate(findings, briefing),
        *_changes_of_result(findings, briefing),
        *findings.caveats,
        *findings.proof.compiler_notes,
        *([findings.proof.last_batch] if findings.proof.last_batch else ()),
        *_at_limit(findings, briefing),
        *loading_caveats(findings.proof),
    ]
    caveats = [*answer, *_waited(clock), *study.notes, *briefing.caveats, *estimating]
    return Answer(
        plan=findings.plan,
        proof=findings.proof,
        estimate=findings.estimate,
        baseline=_without_traceback(findings.baseline),
        gain=findings.gain,
        rate_per_s=findings.rate_per_s,
        strategies=_strategies(findings, briefing),
        untried=findings.untried,
        alternatives=findings.alternatives,
        caveats=tuple(dict.fromkeys(caveats)),
        refused=(*findings.refused, *briefing.space.refused),
        stopped=findings.stopped,
        budget=budget,
        objective=request.objective,
        environment=_weighted(briefing.environment, findings.weighing),
        study=study.location,
        title=request.title,
        command=request.command,
        counts=findings.counts,
        duration_s=round(clock.elapsed_s, 2),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _weighted(environment: Environment, weighing: str) -> Environment:
    """Returns the environment of an answer, with the quantity by which its plan weights micro batches."""
    if not weighing:
        return environment
    return environment.model_copy(update={"settings": {**environment.settings, WEIGHING: weighing}})


def _without_traceback(candidate: Candidate) -> Candidate:
    """Returns a candidate without the user's source lines, because a plan file is shared."""
    return candidate.model_copy(update={"outcome": candidate.outcome.model_copy(update={"traceback_text": ""})})


def _learning_rate(findings: Findings, briefing: Briefing) -> list[str]:
    """Returns the caveat about a changed global batch."""
    old, new = briefing.space.baseline.global_batch_size, findings.plan.global_batch_size
    if old == new or briefing.environment.is_inference:
        return []
    return [
        f"{BATCH_CHANGED} from {old} to {new}: adjust the learning rate and the number of "
        f"steps ({LEARNING_RATE_RULE}). "
        "Give global_batch_size to keep it exactly, or max_global_batch_size to bound it"
    ]


def _changes_of_result(findings: Findings, briefing: Briefing) -> list[str]:
    """Returns a caveat for each strategy of the plan that changes the result of any training."""
    changed, found = findings.plan.changes_from(briefing.space.baseline), []
    for each in briefing.space.strategies:
        values = [f"{name}={changed[name]}" for name in each.knobs if name in changed]
        if values and each.effect == _CHANGES:
            found.append(f"{' '.join(values)} changes the result of the training{f': {each.about}' * bool(each.about)}")
    return found


def _strategies(findings: Findings, briefing: Briefing) -> tuple[StrategyRecord, ...]:
    """Returns the strategies whose values differ between the plan and the baseline.

    Those that a gate found to change this model's gradient, and another global batch, change the result.
    """
    changed = findings.plan.changes_from(briefing.space.baseline)
    failed = set(findings.allowed)
    changing = {name for name, value in changed.items() if f"{name}={value}" in failed}
    changing |= {ACCUMULATION_STEPS} & changed.keys() if "accumulation" in failed else set()
    changing |= {MICRO_BATCH_SIZE} if _learning_rate(findings, briefing) else set()
    found = [each for each in briefing.space.strategies if not changed.keys().isdisjoint(each.knobs)]
    found = [
        each if changing.isdisjoint(each.knobs) else each.model_copy(update={"effect": _CHANGES}) for each in found
    ]
    return tuple(_as_used(each, changed) for each in found)


def _as_used(strategy: StrategyRecord, changed: Mapping[str, KnobValue]) -> StrategyRecord:
    """Returns the record of a strategy, which says so if the plan only switches off what the user has switched on."""
    if any(changed[name] for name in strategy.knobs if name in changed):
        return strategy
    about = f"is switched off by the plan. Where it is on, it {strategy.about}"
    return strategy.model_copy(update={"about": about if strategy.about else "", "cost": ""})


def _at_limit(findings: Findings, briefing: Briefing) -> list[str]:
    """Returns the caveat about a free batch whose limit is at most one size above that of the plan."""
    space, size = briefing.space, findings.plan.micro_batch_size
    if not space.batch_limit or size not in space.sizes[-2:]:
        return []
    return [f"the search tried at most {space.sizes[-1]:,} samples per step, {space.batch_limit}"]


def _waited(clock: Clock) -> list[str]:
    """Returns the caveat about a search that waited for its device."""
    if clock.waited_s < LEAST_WAIT_S:
        return []
    waited, whole = format_duration(clock.waited_s), format_duration(clock.elapsed_s)
    return [f"{waited} of the {whole} of this search were spent waiting for the device, which another process used"]
