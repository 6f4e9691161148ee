"""One search, from briefing to answer: opens the study, makes searcher and estimators, keeps the evidence of the end.

Never loads torch: the command line runs it in a process that does not import the user's code.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from autofit import estimators, locks
from autofit.core.answer import Answer
from autofit.core.briefing import LONG_PROOF, Briefing, Examiner, GateRecord, Options
from autofit.core.budget import Budget, Clock
from autofit.core.environment import WEIGHING
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    Busy,
    DevicePoisoned,
    NothingFits,
    RestoreError,
    StudyError,
    UsageError,
    UserCodeError,
)
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.space import Effect, SearchSpace, StrategyRecord
from autofit.core.trial import Purpose
from autofit.core.units import format_duration
from autofit.core.wording import describe_plan
from autofit.estimators import Context
from autofit.estimators.base import Estimator
from autofit.memory.profile import Profile
from autofit.search.choice import DEVICE_NOISE_RATIO, DISTURBED_NOISE_RATIO
from autofit.search.evidence import (
    BATCH_CHANGED,
    CLOSED,
    HELD,
    LEARNING_RATE_RULE,
    OPENED,
    Placing,
    SearchEvidence,
    SearchResult,
    notes_of,
    race_logs,
)
from autofit.search.explanations import loading_caveats
from autofit.search.loop import Loop
from autofit.search.race_and_proof import Final
from autofit.search.request import DEFAULT_STUDY, Bench, Event, Examine, Findings, Listen, Request, Tuning, searcher_of
from autofit.study import Study, splits
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
    """Collects the evidence of one search. A failure here never costs the answer: the listener receives a message."""

    def __init__(self, asked: SearchEvidence, note: Note, estimators: Sequence[Estimator], listen: Listen) -> None:
        self._asked, self._note, self._estimators, self._listen = asked, note, estimators, listen
        self._loop: Loop | None = None
        self._done = 0
        self._keep(asked, OPENED)
        self._listen(Event("start", f"searching plans for {asked.title or 'the workload'}", asked=asked))

    def tell(self, event: Event) -> None:
        """Passes an event of the search on."""
        self._done = event.done
        self._listen(event)

    def follow(self, loop: Loop) -> None:
        """Receives the search that begins, whose evidence is kept at its end."""
        self._loop = loop

    def show(self, plan: Plan) -> None:
        """Traces the recommended plan, unless the search did, for its profile and for advice on its memory."""
        named = describe_plan(plan, self._asked.baseline)
        with self._harmless(f"{named} was not traced for the report"):
            if self._profile(plan) is None:
                self._listen(Event("stage", f"tracing {named} for the report", done=self._done))
                for estimator in self._estimators:
                    estimator.show(plan)

    def found(self, answer: Answer) -> None:
        """Keeps the evidence for an answer, and tells the listener both."""
        text = f"recommended: {describe_plan(answer.plan, self._asked.baseline)}"
        self._listen(Event("result", text, done=self._done, result=self._result(answer)))

    def failed(self, error: AutofitError) -> None:
        """Keeps the evidence of a search that ends with an error, and tells the listener."""
        result = self._result(None, failure=str(error), failure_code=error.exit_code)
        try:
            self._listen(Event("result", "no plan is recommended", done=self._done, result=result))
        except Exception as lesser:  # noqa: BLE001  # the caller raises the error that ended the search
            error.add_note(f"a listener failed too: {type(lesser).__name__}: {lesser}")

    def _result(self, answer: Answer | None, **found: object) -> SearchResult:
        """Returns what the search found, with the evidence as it is kept in the study."""
        loop, plan = self._loop, self._asked.baseline if answer is None else answer.plan
        trials = () if loop is None else tuple(loop.runner.trials)
        found["answer"] = None if answer is None else answer.model_copy(update={"alternatives": ()})
        with self._harmless("the evidence for the report is incomplete"):
            others, baseline = () if answer is None else answer.alternatives, self._asked.baseline
            found["standings"] = tuple(Placing(**each.model_dump(exclude={"outcome"})) for each in others)
            if loop is not None:
                verdicts, estimates = loop.checks.known.items(), loop.feasibility.looked_at.items()
                found |= {
                    "stopped": loop.end.stopped,
                    "gates": tuple(GateRecord(name=name, passed=v.passed, reason=v.reason) for name, v in verdicts),
                    "refused": (*loop.checks.refused, *self._asked.refused),
                    "estimates": {key: estimate for key, estimate in estimates if estimate.is_bounded},
                    "race": tuple(race_logs(loop.race, trials)),
                    "omissions": tuple(loop.omissions),
                    "answers": tuple(loop.answers.log),
                    "profile": self._profile(plan),
                    "baseline_profile": None if plan == baseline else self._profile(baseline),
                }
        evidence = self._asked.model_copy(update=found)
        self._keep(evidence, CLOSED)
        return SearchResult(answer, evidence, trials)

    def _profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace; None if it was not traced."""
        found = (estimator.profile(plan) for estimator in self._estimators)
        return next((profile for profile in found if profile is not None), None)

    def _keep(self, evidence: SearchEvidence, name: str) -> None:
        with self._harmless("the evidence for the report was not kept"):
            for part, value in notes_of(evidence, name).items():
                self._note(part, value)

    @contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """Reports an error inside: the answer matters more than what is shown with it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._listen(Event("stage", f"{what}: {type(error).__name__}: {error}", done=self._done))


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


def endurance(examine: Callable[[Examiner, Plan, float], str], request: Request) -> Examine | None:
    """Returns what runs an answer for the time that a request asks for; None if it asks for none."""
    examiner = Examiner(function=LONG_PROOF, seconds=request.prove_s)
    return partial(examine, examiner) if request.prove_s else None


def search(
    bench: Bench,
    request: Request,
    listen: Sequence[Listen] = (),
    clock: Clock | None = None,
    examine: Examine | None = None,
    endure: Examine | None = None,
) -> Answer:
    """Searches the space of a bench and returns the proven answer.

    The `clock` runs since the call began, so that the time for opening the bench counts. `examine` looks at the steps
    of the answer of a training, and `endure` runs it for `request.prove_s`.

    Raises:
        AutofitError: see `run` and `autofit.study.Study`.
    """
    clock, briefing, steps = clock or Clock(), bench.briefing, request.planned_steps
    if steps is None and any(knob.warm_up_s for knob in briefing.space.knobs):
        steps = PLANNED_STEPS
    if steps is not None:  # in samples, which are independent of a plan's batch
        planned = {"planned_samples": steps * briefing.environment.ranks * briefing.space.baseline.global_batch_size}
        request = replace(request, objective=request.objective.model_copy(update=planned))
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
        study = _opened(location, name, briefing, request.objective)
        files = splits.places(location, request.plan_file)
        if trainings := splits.read(files, briefing.environment):
            notes = _from_trainings(study, trainings)
            study = _opened(location, name, briefing, request.objective)
            study.notes = (*notes, *study.notes)
            splits.forget(files, trainings)
        opened.callback(study.close)
        return _search(bench, request, study, clock, tell_all, (examine, endure))


def _opened(location: str | Path, name: str, briefing: Briefing, objective: Objective) -> Study:
    return Study(
        location,
        name=name,
        environment=briefing.environment,
        space=briefing.space,
        objective=objective,
        memory_bytes=briefing.budget.memory_bytes,
    )


def _from_trainings(study: Study, trainings: Sequence[splits.TrainingSplits]) -> list[str]:
    """Records for plans that ran out of memory in a training that they do not fit. Returns notes, closes the study."""
    notes = list[str]()
    for each in trainings:
        if any(trial.plan == each.plan for trial in study.earlier()):
            study.drop("it ran out of memory in a training", each.plan)
        outcome = Outcome(status=Status.OUT_OF_MEMORY, reason=each.words)
        study.finish(study.begin(each.plan, Purpose.PROBE), outcome)
        notes.append(f"{each.plan}: {each.words}. This search counts it as a plan that does not fit")
    study.close()
    return notes


def run(tuning: Tuning, began: Callable[[Loop], None] = lambda loop: None) -> Findings:
    """Searches, races the finalists and proves the winner. Once there is an answer, it is returned whatever happens.

    An error or an interrupt of the user then only ends the search (`Findings.stopped`, `Findings.interrupted`).
    `began` is called with the search before its first run.

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
    began(loop)
    final: Final | None = None
    try:
        loop.search()
        final = Final(loop)
        final.settle()
        final.examine()
        final.endure()
    except (KeyboardInterrupt, AutofitError) as error:
        loop.answers.fall_back()
        # On a poisoned device of this process nothing can be put back, so that the user has no model to train any more.
        lost = isinstance(error, DevicePoisoned) and not tuning.isolated
        if loop.answers.best is None or lost or isinstance(error, RestoreError | StudyError):
            raise
        loop.stop(error)
    return (final or Final(loop)).findings()


def _search(
    bench: Bench,
    request: Request,
    study: Study,
    clock: Clock,
    listen: Listen,
    looks: tuple[Examine | None, Examine | None],
) -> Answer:
    briefing = bench.briefing
    budget = briefing.budget.model_copy(update={"time_s": request.time_s, "max_trials": request.max_trials})
    context = Context(
        limit_bytes=budget.memory_bytes,
        account=briefing.account,
        allowance_s=tracing_s(budget.time_s, clock.elapsed_s),
        trace=bench.trace,
    )
    made = [estimator for member in estimators.members() if (estimator := member.of(context)) is not None]
    recorder = EvidenceRecorder(asked(briefing, budget, request, study.notes), study.note, made, listen)
    tuning = _tuning(bench, budget, request, study, clock, made, recorder)
    tuning.prove_s = request.prove_s
    tuning.examine, tuning.endure = (None, None) if briefing.environment.is_inference else looks
    try:
        findings = run(tuning, recorder.follow)
    except AutofitError as error:
        recorder.failed(error)
        raise
    if not findings.interrupted:
        recorder.show(findings.plan)
    found = _answer(findings, briefing, tuning, request, study)
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
    made: Sequence[Estimator],
    recorder: EvidenceRecorder,
) -> Tuning:
    """Returns the arguments of the search."""
    briefing, is_host = bench.briefing, bench.briefing.environment.is_host
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
        cautious=not briefing.enforced and is_host,
        noise_ratio=DISTURBED_NOISE_RATIO if is_host else DEVICE_NOISE_RATIO,
        check=bench.check,
        checked_as=hashlib.sha256(held.encode()).hexdigest()[:16],
    )


def tracing_s(time_s: float | None, spent_s: float) -> float:
    """Returns the seconds for estimating memory. If nothing is left of the time, only the baseline is traced."""
    if time_s is None:
        return TRACING_S
    return max(min(TRACING_RATIO * (time_s - spent_s), TRACING_S), 0.0)


def _answer(findings: Findings, briefing: Briefing, tuning: Tuning, request: Request, study: Study) -> Answer:
    """Returns the answer, with what is known of it beside the search."""
    estimating = [estimator.caveat for estimator in tuning.estimators if estimator.caveat]
    caveats = [*_caveats(findings, briefing, tuning.clock), *study.notes, *briefing.caveats, *estimating]
    caveats += [findings.examined] if findings.examined else []
    if findings.long_proof and not findings.long_proof.startswith(HELD):
        caveats.insert(0, f"the long proof: {findings.long_proof}")
    environment, outcome = briefing.environment, findings.baseline.outcome
    if findings.weighing:
        settings = {**environment.settings, WEIGHING: findings.weighing}
        environment = environment.model_copy(update={"settings": settings})
    shared = outcome.model_copy(update={"traceback_text": ""})  # a plan file is shared, without the user's source lines
    return Answer(
        plan=findings.plan,
        proof=findings.proof,
        estimate=findings.estimate,
        baseline=findings.baseline.model_copy(update={"outcome": shared}),
        gain=findings.gain,
        rate_per_s=findings.rate_per_s,
        strategies=tuple(_strategies(findings, briefing)),
        untried=findings.untried,
        long_proof=findings.long_proof,
        alternatives=findings.alternatives,
        caveats=tuple(dict.fromkeys(caveats)),
        refused=(*findings.refused, *briefing.space.refused),
        stopped=findings.stopped,
        budget=tuning.budget,
        objective=request.objective,
        environment=environment,
        study=study.location,
        title=request.title,
        command=request.command,
        counts=findings.counts,
        duration_s=round(tuning.clock.elapsed_s, 2),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _changes_batch(plan: Plan, briefing: Briefing) -> bool:
    """Returns whether a plan changes the global batch of a training."""
    return plan.global_batch_size != briefing.space.baseline.global_batch_size and not briefing.environment.is_inference


def _caveats(findings: Findings, briefing: Briefing, clock: Clock) -> Iterator[str]:
    """Yields the caveats: what to change with the answer, doubts about it, then how it was found."""
    space, plan, proof, ranks = briefing.space, findings.plan, findings.proof, briefing.environment.ranks
    if _changes_batch(plan, briefing):
        yield (
            f"{BATCH_CHANGED} from {ranks * space.baseline.global_batch_size} to {ranks * plan.global_batch_size}: "
            f"adjust the learning rate and the number of steps ({LEARNING_RATE_RULE}). "
            "Give global_batch_size to keep it exactly, or max_global_batch_size to bound it"
        )
    changed = plan.changes_from(space.baseline)
    for each in space.strategies:
        values = [f"{name}={changed[name]}" for name in each.knobs if name in changed]
        if values and each.effect == _CHANGES:
            yield f"{' '.join(values)} changes the result of the training{f': {each.about}' * bool(each.about)}"
    yield from (*findings.caveats, *proof.compiler_notes)
    if proof.last_batch:
        yield proof.last_batch
    if space.batch_limit and plan.micro_batch_size in space.sizes[-2:]:
        yield f"the search tried at most {ranks * space.sizes[-1]:,} samples per step, {space.batch_limit}"
    yield from loading_caveats(proof)
    if clock.waited_s >= LEAST_WAIT_S:
        waited, whole = format_duration(clock.waited_s), format_duration(clock.elapsed_s)
        yield f"{waited} of the {whole} of this search were spent waiting for the device, which another process used"


def _strategies(findings: Findings, briefing: Briefing) -> Iterator[StrategyRecord]:
    """Yields the strategies whose values differ between the plan and the baseline; one that is only off says so."""
    # Values that a gate found to change this model's gradient, and another global batch, change the result.
    changed = findings.plan.changes_from(briefing.space.baseline)
    changing = {name for name, value in changed.items() if f"{name}={value}" in findings.allowed}
    if "accumulation" in findings.allowed:
        changing |= {ACCUMULATION_STEPS} & changed.keys()
    if _changes_batch(findings.plan, briefing):
        changing.add(MICRO_BATCH_SIZE)
    for strategy in briefing.space.strategies:
        values, update = [changed[name] for name in strategy.knobs if name in changed], dict[str, str]()
        if not changing.isdisjoint(strategy.knobs):
            update["effect"] = _CHANGES
        if values and not any(values):
            about = f"is switched off by the plan. Where it is on, it {strategy.about}"
            update |= {"about": about if strategy.about else "", "cost": ""}
        if values:
            yield strategy.model_copy(update=update)


TIME_SHARE = 0.2
"""Share of the time budget that is reserved for the search of evaluation. It also gets what the training's leaves. A
proof of the training that takes longer than expected may use this share: the training comes first."""
STAGE = "searching a plan for evaluation, on the batches of eval_loader"
"""Text of the stage in which evaluation is searched."""


def training_request(request: Request) -> Request:
    """Returns the request of the training's search, which leaves time for that of evaluation."""
    return request if request.time_s is None else replace(request, time_s=(1 - TIME_SHARE) * request.time_s)


def with_evaluation(
    training: Answer,
    options: Options,
    request: Request,
    clock: Clock,
    searched: Callable[[Options, Request, Clock], Answer],
) -> Answer:
    """Returns the training's answer with that of evaluation, or with a caveat that says why there is none.

    This is the second search of a call, for the batch size and the plan of evaluation between epochs. Evaluation keeps
    no activations and no gradients, but runs while the training's weights and optimizer state are on the device. So it
    is searched after the training, in inference mode on its own batches, within the training's memory budget less the
    bytes that the training keeps beside the model.

    The answer for the training is never lost: evaluation that does not fit, fails or has no time left is a caveat. The
    `options` are the training's, `request` and `clock` those of the whole call, and `searched` gets its own.

    Raises:
        AutofitError: the device does not respond, the user's objects could not be restored, or autofit failed.
        SearchInterrupted: the user stopped it; the training's answer is kept.
    """
    kept_bytes = training.proof.memory.static_bytes or 0
    changes = {"memory_budget": training.budget.memory_bytes, "resident_bytes": kept_bytes, "cold": False}
    given = options.model_copy(update={**changes, "pinned": {}})  # pins are for the training's plan alone
    title = f"evaluation of {request.title}" if request.title else "evaluation"
    try:
        left_s = None if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)
        second = replace(request, time_s=left_s, planned_steps=None, title=title)
        return training.model_copy(update={"evaluation": searched(given, second, Clock(limit_s=left_s))})
    except KeyboardInterrupt:
        raise SearchInterrupted(training) from None
    except (NothingFits, UserCodeError, BudgetSpent, UsageError, Busy) as error:
        caveat = f"no plan for evaluation was found: {error}"
        return training.model_copy(update={"caveats": (*training.caveats, caveat)})
