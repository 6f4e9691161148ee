"""RemoteBench: a bench in a warm child process, replaced once it can no longer be trusted. Never loads torch."""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from autofit.core import errors
from autofit.core.briefing import Briefing, Examiner
from autofit.core.budget import TRACE_RATIO, Clock
from autofit.core.outcome import SURVEY, Outcome, Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.core.units import format_duration
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.breakdown import Part
from autofit.memory.trace import Trace
from autofit.probing.compile_cache import VARIABLE, CompileCache
from autofit.probing.remote.child import Child, ChildEnded, Deadlines, OutputLog
from autofit.probing.remote.nursery import Nursery
from autofit.probing.remote.target import HOST_LIMIT_ENVIRONMENT, OTHER_VERSION, Target

__all__ = ["HOST_LIMIT_ENVIRONMENT", "RemoteBench", "Target"]

BRIEF_GRACE_S = 1.0
"""Maximum time between SIGTERM and SIGKILL if there is a time budget."""
SOFT_S = 1.0
"""Time in which a child may end a run that exceeds its limit, before it is killed."""
ONE_CACHE = 1
"""Number of leaking runs that are tolerated: an object that is made once and kept, such as a table, leaks only once."""
STARTING = "starting its process"
SUFFICES_RATIO, ROUNDED_S = 2.0, 10
"""Time that probably suffices for an opening, relative to the time after which it was cut off, rounded up to a multiple
of `ROUNDED_S` seconds: the phase that was cut off may have been near its end, and a probe must follow."""
_REPLACED_AFTER = (Status.POISONED, Status.TIMED_OUT, Status.CRASHED, Status.AMBIGUOUS, Status.WORKER_LOST)
_Record = TypeVar("_Record", bound=BaseModel)
_NAMES, _PARTS = TypeAdapter(tuple[str, ...]), TypeAdapter(tuple[Part, ...])


def asked(
    child: Child,
    request: dict[str, Any],
    expected: str | tuple[str, ...],
    patience_s: float,
    beat: Callable[[str], None],
) -> dict[str, Any]:
    """Returns the child's reply of an expected kind.

    Raises:
        ChildEnded: as in `Child.ask`.
        AutofitError: any other reply is the child's final error, which is raised here. The child is gone then.
    """
    reply = child.ask(request, beat, patience_s)
    if reply["kind"] in ((expected,) if isinstance(expected, str) else expected):
        return reply
    child.kill()
    raise errors.from_record(reply)


def parsed(child: Child, reply: dict[str, Any], record: type[_Record]) -> _Record:
    """Returns the record that a reply has under the name of its kind.

    Raises:
        ChildEnded: it is not valid. The child is gone.
    """
    try:
        return record.model_validate(reply.get(reply["kind"]))
    except ValidationError as error:
        child.kill()
        reason = f"the probe's process sent no valid {reply['kind']}: {error.errors()[0]['msg']}"
        raise ChildEnded(Outcome(status=Status.CRASHED, reason=reason)) from None


class Phases:
    """Follows the phases that a child reports while it opens its target, and passes them on to `report`.

    Attributes:
        current: the current phase.
        spent_s: seconds that each finished phase took.
    """

    def __init__(self, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock, self._report, self._began_s = clock, report, clock.elapsed_s
        self.current = STARTING
        self.spent_s: dict[str, float] = {}

    @property
    def since_s(self) -> float:
        """Seconds since the current phase began."""
        return self._clock.elapsed_s - self._began_s

    def enter(self, phase: str) -> None:
        """Begins a phase. If it is already the current phase, only reports it again, as a sign of life."""
        if phase != self.current:
            self.spent_s[self.current] = self.spent_s.get(self.current, 0.0) + self.since_s
            self.current, self._began_s = phase, self._clock.elapsed_s
        self._report(phase)

    def cut_off(self) -> str:
        """Returns the seconds of each phase of an opening that was cut off, and the time that would suffice."""
        took = [f"{phase!r} took {format_duration(spent_s)}" for phase, spent_s in self.spent_s.items()]
        running = f"{self.current!r} had been running for {format_duration(self.since_s)}"
        wanted_s = math.ceil(SUFFICES_RATIO * self._clock.elapsed_s / ROUNDED_S) * ROUNDED_S
        advice = f"Give about {format_duration(wanted_s)}, or look for what hangs in this phase"
        return f"{', '.join([*took, running])}. {advice}"


class RemoteBench:
    """Probes a target in one warm child process, and proves host plans under a real limit in a fresh process.

    Use it as a context manager: leaving it ends every process that it started.

    A child is replaced after `probes_per_child` requests. `beat` is called with each phase of a probe as it begins,
    `claim` with lock key and name of the device before a child uses it: it returns once the child may. The `deadlines`
    apply unless the time budget of the `clock` is shorter. `log` is the file for the output of the user's code; None
    uses a temporary file, kept if a message names it.

    Attributes:
        briefing: what is known before the first probe.
        proof_start_s: seconds needed to start the fresh process of a proof; 0 if a proof needs none.

    Raises:
        AutofitError: opening the target raised it in the child. It is raised again here.
        UserCodeError: the child died or hung while it opened the target.
        BudgetSpent: the time budget ended before the target was open.
    """

    def __init__(
        self,
        target: Target,
        *,
        deadlines: Deadlines | None = None,
        probes_per_child: int = 50,
        beat: Callable[[str], None] = lambda phase: None,
        claim: Callable[[str, str], None] | None = None,
        clock: Clock | None = None,
        log: Path | None = None,
    ) -> None:
        self._target, self._beat, self._claim, self._clock = target, beat, claim, clock or Clock()
        self._deadlines = deadlines or Deadlines()
        if self._clock.limit_s is not None:
            self._deadlines = replace(self._deadlines, grace_s=min(self._deadlines.grace_s, BRIEF_GRACE_S))
        self._log, self._cache = OutputLog(log), CompileCache()
        self._nursery = Nursery({VARIABLE: self._cache.name, **target.environment})
        self._most, self._count, self._leaks = probes_per_child, 0, 0
        self._known: Briefing | None = None  # what the first child found is reused for all: the survey takes time
        self._child: Child | None = None
        began, self._survey_s, self._waited_s = self._clock.elapsed_s, 0.0, 0.0
        try:
            self._child, self.briefing = self._start({}, enforce=False)
        except BaseException:
            self._tidy()
            raise
        self._known, self._kept = self.briefing, list[KnobValue]()
        start_s = max(self._clock.elapsed_s - began - self._survey_s - self._waited_s, 0.0)
        self.proof_start_s = start_s if self.briefing.environment.is_host else 0.0

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs `plan` in the child, on the given terms.

        A child that died, hung, leaked twice or is poisoned is replaced for the next call.

        On a host device, a proof must also pass in a fresh process whose memory is really limited to the budget.
        """
        if self._clock.patience_s() <= 0:
            return Outcome(status=Status.SKIPPED, reason=f"{self._over()} before it began")
        try:
            if purpose is Purpose.PROOF and self.briefing.environment.is_host:
                child, _ = self._start(HOST_LIMIT_ENVIRONMENT, enforce=True)
                try:
                    limited = self._evaluate(child, plan, purpose, OPEN)
                finally:
                    child.kill()
                if not limited.measured:
                    return limited
            child = self._warm_for(plan)
        except errors.BudgetSpent as spent:  # while opening a fresh child
            return Outcome(status=Status.SKIPPED, reason=str(spent))
        outcome = self._evaluate(child, plan, purpose, terms)
        self._count += 1
        self._leaks += bool(outcome.leaked)
        untrusted = outcome.status in _REPLACED_AFTER or self._leaks > ONE_CACHE
        if child.ended or untrusted or self._count >= self._most:
            self._retire()
        return outcome

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Checks in the warm child whether a plan keeps the baseline's gradient.

        A child that ends, or the end of the time, leaves the plan unchecked. A new child serves the next call.
        """
        patience_s = self._clock.patience_s()
        try:
            if patience_s <= 0:
                raise errors.BudgetSpent(f"{self._over()} before it began")
            verdicts = {name: verdict.model_dump(mode="json") for name, verdict in known.items()}
            request = {"do": "check", "plan": plan.model_dump(mode="json"), "known": verdicts}
            child = self._warm_for(plan)
            return parsed(child, asked(child, request, "checked", patience_s, self._beat), Checked)
        except (ChildEnded, errors.BudgetSpent, errors.DevicePoisoned) as error:  # of that process, which has ended
            return Checked(passed=False, checked=False, reason=f"could not be checked: {error}")

    def examine(self, examiner: Examiner, plan: Plan, limit_s: float) -> str:
        """Has some steps of a proven plan examined as in `LocalBench.examine`, by the child that ran it.

        No child is started for this, and one that fails or hangs is replaced for the next call.
        """
        child = self._child
        if child is None or child.ended or self._of_process(plan) != self._kept:
            return ""
        request = {"do": "examine", "plan": plan.model_dump(mode="json"), "limit_s": limit_s}
        request["examiner"] = examiner.model_dump(mode="json")
        try:  # the child ends it first, and lives
            return str(asked(child, request, "examined", limit_s + SOFT_S, self._beat).get("examined", ""))
        except (ChildEnded, errors.AutofitError):  # of that process, which has ended
            return ""

    def trace(self, plan: Plan, length: int | None = None) -> Trace:
        """Returns the allocations of the plan's training steps, traced in the warm child.

        `length` is the sequence length of the batches, for a stand-in; None for the loader's.

        Raises:
            Untraceable: as in `LocalBench.trace`, or the child ended. A new child serves the next call.
        """
        where, patience_s = "in the process that traces", TRACE_RATIO * self._clock.patience_s()
        if patience_s <= 0:
            raise errors.Untraceable(f"{self._over()} before it began", where)
        request: dict[str, Any] = {"do": "trace", "plan": plan.model_dump(mode="json")}
        if patience_s < math.inf:
            request["limit_s"] = patience_s
        if length is not None:
            request["length"] = length
        try:  # the child ends it first, and lives
            child = self._warm()
            reply = asked(child, request, "trace", patience_s + SOFT_S, self._beat)
            if "trace" not in reply:
                raise errors.Untraceable(str(reply.get("reason")), str(reply.get("where")))
            return parsed(child, reply, Trace)
        except (ChildEnded, errors.BudgetSpent, errors.DevicePoisoned) as error:  # in that process, which has ended
            raise errors.Untraceable(str(error), where) from None

    def fixed_parts(self) -> tuple[Part, ...]:
        """Returns the memory that a step keeps at any batch size, for a stand-in's workload; () if it is unknown."""
        try:
            reply = asked(self._warm(), {"do": "fixed_parts"}, "fixed_parts", self._clock.patience_s(), self._beat)
            return _PARTS.validate_python(reply.get("parts"))
        except (ChildEnded, ValidationError):
            return ()

    def close(self) -> None:
        """Ends the child, after it has put its workload back and verified this.

        Raises:
            RestoreError: the child found a difference.
        """
        child, self._child = self._child, None
        with ExitStack() as held:
            held.callback(self._tidy)
            if child is not None:
                held.callback(child.close)
                if not child.ended:
                    with suppress(ChildEnded, errors.DevicePoisoned):  # what was in that process has ended with it
                        asked(child, {"do": "close"}, "closed", self._clock.closing_s(), self._beat)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._retire()
        finally:
            self._tidy()

    def _tidy(self) -> None:
        self._nursery.close()
        self._log.close()
        self._cache.cleanup()

    def _warm_for(self, plan: Plan) -> Child:
        """Returns a warm child that has run no plan with other values of the knobs of which it keeps the first."""
        before, self._kept = self._kept, self._of_process(plan)
        if before not in ([], self._kept):
            self._retire()
        return self._warm()

    def _of_process(self, plan: Plan) -> list[KnobValue]:
        """Returns the plan's values of the knobs of which a process keeps the first."""
        return [plan.values.get(each.name, each.default) for each in self.briefing.space.knobs if each.of_process]

    def _warm(self) -> Child:
        """Returns the warm child, or a new one if the last was retired."""
        if self._child is None or self._child.ended:  # it may have died since the last request
            self._retire()
            self._count = self._leaks = 0
            self._child, briefing = self._start({}, enforce=False)
            found, expected = briefing.environment.workload, self.briefing.environment.workload
            if found != expected:
                raise errors.WorkloadError(
                    f"{self._target.name} returned a different workload when it was called again (signature {found}, "
                    f"before {expected}). Make it return the same workload each time."
                )
        return self._child

    def _start(self, environment: Mapping[str, str], enforce: bool) -> tuple[Child, Briefing]:
        """Returns a new child that has opened the target, with its briefing. One that crashes meanwhile is replaced."""
        for is_last in (False, True):
            if self._clock.patience_s() <= 0:
                raise errors.BudgetSpent(f"{self._over()} before {self._target.name} was opened.")
            phases = Phases(self._clock, self._beat)
            try:
                return self._started(environment, enforce, phases)
            except ChildEnded as ended:
                name, status, reason = self._target.name, ended.outcome.status, ended.outcome.reason
                if status is Status.TIMED_OUT and self._clock.left_s <= 0:
                    cut_off = f"{self._over()} before {name} was open: {phases.cut_off()}. ({reason}.)"
                    raise errors.BudgetSpent(cut_off) from None
                if is_last or status is not Status.CRASHED:
                    why = f"opening {name} failed in the phase {phases.current!r}: {reason}"
                    raise errors.UserCodeError(why) from None
        raise AssertionError("the last attempt returns or raises")

    def _started(self, environment: Mapping[str, str], enforce: bool, phases: Phases) -> tuple[Child, Briefing]:
        child = None
        try:
            child = Child(self._deadlines, environment, self._log, self._nursery, self._clock.patience_s())
            reply = self._opened(child, enforce, phases)
            briefing = Briefing.model_validate(reply.get("briefing"))
            libraries = _NAMES.validate_python(reply.get("libraries", ()))
        except BaseException as error:
            if child is not None and not isinstance(error, ChildEnded):
                child.kill()
            if isinstance(error, ValidationError):
                raise errors.AutofitError(OTHER_VERSION) from error
            raise
        if not self._nursery.libraries:
            self._nursery.learn(libraries, reply.get("gpus", 0))
        self._survey_s = phases.spent_s.get(SURVEY, self._survey_s)
        return child, briefing

    def _opened(self, child: Child, enforce: bool, phases: Phases) -> dict[str, Any]:
        """Claims the device that the child names, and returns the child's reply with its briefing."""
        request = self._target.request(enforce, self._known)
        request |= {"claims": self._claim is not None, "libraries": not self._nursery.libraries}
        if self._clock.limit_s is not None:
            request["time_budget"] = {"limit_s": self._clock.limit_s, "elapsed_s": self._clock.elapsed_s}
        reply = asked(child, request, ("briefing", "device"), self._clock.patience_s(), phases.enter)
        if reply["kind"] == "device" and self._claim is not None:
            asked_s = self._clock.elapsed_s
            self._claim(str(reply.get("key")), str(reply.get("name")))
            self._waited_s = self._clock.elapsed_s - asked_s
            self._clock.waited_s += self._waited_s
            reply = asked(child, {"do": "go"}, "briefing", self._clock.patience_s(), phases.enter)
        return reply

    def _over(self) -> str:
        return f"the time budget of {format_duration(self._clock.limit_s or 0.0)} ran out"

    def _evaluate(self, child: Child, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        limit_s = math.inf if terms.limit_s is None else terms.limit_s + SOFT_S  # the child ends it first, and lives
        patience_s = min(self._clock.patience_s() + SOFT_S, limit_s)
        request = {"do": "evaluate", "plan": plan.model_dump(mode="json"), "purpose": purpose.value}
        request["terms"] = terms.model_dump(mode="json")
        try:
            return parsed(child, asked(child, request, "outcome", patience_s, self._beat), Outcome)
        except ChildEnded as ended:
            return ended.outcome

    def _retire(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
