"""RemoteBench: a bench in a warm child process, replaced when it is no longer to be trusted. Never loads torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pydantic import ValidationError

from autofit.core import errors
from autofit.core.briefing import Briefing, Options
from autofit.core.catalogue import StandIn
from autofit.core.foreseen import Part
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trace import Trace
from autofit.core.trial import Purpose
from autofit.probing.child import Child, ChildEnded, Deadlines

HOST_LIMIT_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""With these set before the process starts, freed tensors go back to the system at once, so that a limit on the data
segment falls close to the tensors' sum (reference/memory_prediction.md section 6). They slow the process down to a
half: never time a step under them."""
HIDING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}
"""With these a child that stands in for a device takes no memory of those that are here: the user's code sees none."""

ONE_CACHE = 1
"""Something that the user's code or a library makes once and keeps, such as a table, is left behind by one run only."""
_REPLACED_AFTER = (Status.POISONED, Status.TIMED_OUT, Status.CRASHED, Status.AMBIGUOUS, Status.WORKER_LOST)


@dataclass(frozen=True, slots=True)
class Target:
    """What the child opens.

    Attributes:
        name: `file.py:function` or `module:function`.
        arguments: keyword arguments for the function.
        overrides: fields of the workload that win over what the function gave.
        device: the device to use; None lets the child choose.
        options: what is asked of the search.
        stand_in: the device to stand in for: the child only traces, and sees no accelerator. None: it probes.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    options: Options = field(default_factory=Options)
    stand_in: StandIn | None = None

    def request(self, enforce: bool, memory_bytes: int | None) -> dict[str, Any]:
        """Returns the request that opens this target; `memory_bytes` wins over the memory budget of the options."""
        budget = self.options.memory_budget if memory_bytes is None else memory_bytes
        changes = {"enforce": enforce, "may_move": True, "memory_budget": budget}
        options = self.options.model_copy(update=changes)
        return {
            "do": "open",
            "target": self.name,
            "arguments": dict(self.arguments),
            "overrides": dict(self.overrides),
            "device": self.device,
            "options": options.model_dump(mode="json"),
            "stand_in": None if self.stand_in is None else self.stand_in.model_dump(mode="json"),
        }


class RemoteBench:
    """Probes a target in one warm child process, and proves host plans under a real limit in a fresh one.

    Use it as a context manager: leaving it ends every process it started.

    Args:
        target: what the child opens.
        deadlines: how long to wait for it.
        probes_per_child: a child is replaced after so many requests.
        beat: called with each phase of a probe as it begins.
        claim: called with the lock key and the name of the device before a child uses it; returns when it may. None
            where nothing is locked.

    Attributes:
        briefing: what is known before the first probe.

    Raises:
        AutofitError: what opening the target raised in the child, as it would have been raised here.
        UserCodeError: the child died or hung while it opened the target.
    """

    def __init__(
        self,
        target: Target,
        *,
        deadlines: Deadlines | None = None,
        probes_per_child: int = 50,
        beat: Callable[[str], None] = lambda phase: None,
        claim: Callable[[str, str], None] | None = None,
    ) -> None:
        self._target, self._beat, self._claim = target, beat, claim
        self._deadlines = deadlines or Deadlines()
        self._most, self._count, self._leaks = probes_per_child, 0, 0
        # The first child's budget holds for all: what is available changes from one moment to the next.
        self._memory_bytes: int | None = None
        self._child: Child | None
        self._child, self.briefing = self._start({}, enforce=False)
        self._memory_bytes = self.briefing.budget.memory_bytes

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs `plan` in the child; a child that died, hung, leaked twice or is poisoned is replaced for the next call.

        On a host device a proof also has to pass in a fresh process whose memory is really limited to the budget.
        """
        if purpose is Purpose.PROOF and self.briefing.environment.device_type == "cpu":
            limited = self._evaluate_limited(plan)
            if not limited.measured:
                return limited
        child = self._warm()
        outcome = self._evaluate(child, plan, purpose)
        self._count += 1
        self._leaks += bool(outcome.leaked)
        untrusted = outcome.status in _REPLACED_AFTER or self._leaks > ONE_CACHE
        if child.ended or untrusted or self._count >= self._most:
            self._retire()
        return outcome

    def trace(self, plan: Plan) -> Trace:
        """Returns the allocations of the plan's training steps, traced in the warm child.

        Raises:
            Untraceable: it cannot be traced, or the child ended over it; a new one serves the next call.
        """
        return self._trace(plan, "trace", "in the process that traces")

    def record(self, plan: Plan) -> Trace:
        """Returns the allocations of a few steps of the plan, run in the warm child.

        Raises:
            Untraceable: as in `Bench.record`, or the child ended over it; a new one serves the next call.
        """
        return self._trace(plan, "record", "in the process that probes")

    def standing(self) -> tuple[Part, ...]:
        """Returns what a step of a stand-in's workload keeps whatever its batch; () where that is not known."""
        try:
            reply = self._reply(self._warm(), {"do": "standing"}, "standing")
        except ChildEnded:
            self._retire()
            return ()
        return tuple(Part.model_validate(part) for part in reply["parts"])

    def _trace(self, plan: Plan, do: str, where: str) -> Trace:
        child = self._warm()
        try:
            reply = self._reply(child, {"do": do, "plan": plan.model_dump(mode="json")}, "trace")
        except ChildEnded as ended:
            self._retire()
            raise errors.Untraceable(ended.outcome.reason, where) from None
        except errors.DevicePoisoned as error:  # for that process; it has ended
            raise errors.Untraceable(str(error), where) from None
        if "trace" not in reply:
            raise errors.Untraceable(str(reply.get("reason")), str(reply.get("where")))
        try:
            return Trace.model_validate(reply["trace"])
        except ValidationError as error:
            first = error.errors()[0]["msg"]
            raise errors.Untraceable(f"no valid trace came back: {first}", "from its process") from None

    def close(self) -> None:
        """Ends the child, having it put its workload back and verify that.

        Raises:
            RestoreError: the child found a difference.
        """
        child, self._child = self._child, None
        if child is None or child.ended:
            return
        try:
            self._reply(child, {"do": "close"}, "closed")
        except ChildEnded:
            return
        finally:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._retire()

    def _warm(self) -> Child:
        """Returns the warm child, a new one when the last was retired."""
        if self._child is None or self._child.ended:
            self._count = self._leaks = 0
            self._child, briefing = self._start({}, enforce=False)
            found, expected = briefing.environment.workload, self.briefing.environment.workload
            if found != expected:
                raise errors.WorkloadError(
                    f"{self._target.name} gave another workload when it was called again (signature {found}, before "
                    f"{expected}). Make it give the same each time."
                )
        return self._child

    def _start(self, environment: Mapping[str, str], enforce: bool) -> tuple[Child, Briefing]:
        hiding = {} if self._target.stand_in is None else HIDING_ENVIRONMENT
        child = Child(self._deadlines, {**environment, **hiding})
        try:
            opening = self._target.request(enforce, self._memory_bytes) | {"claims": self._claim is not None}
            reply = self._reply(child, opening, "briefing", "device")
            if reply["kind"] == "device" and self._claim is not None:
                self._claim(str(reply.get("key")), str(reply.get("name")))
                reply = self._reply(child, {"do": "go"}, "briefing")
        except ChildEnded as ended:
            text = ended.outcome.traceback_text
            raise errors.UserCodeError(f"opening {self._target.name} failed: {ended.outcome.reason}", text) from None
        except BaseException:
            child.kill()
            raise
        return child, Briefing.model_validate(reply["briefing"])

    def _evaluate(self, child: Child, plan: Plan, purpose: Purpose) -> Outcome:
        request = {"do": "evaluate", "plan": plan.model_dump(mode="json"), "purpose": purpose.value}
        try:
            return Outcome.model_validate(self._reply(child, request, "outcome").get("outcome"))
        except ChildEnded as ended:
            return ended.outcome
        except ValidationError as error:
            child.kill()
            first = error.errors()[0]["msg"]
            return Outcome(status=Status.CRASHED, reason=f"the probe's process sent no valid outcome: {first}")

    def _evaluate_limited(self, plan: Plan) -> Outcome:
        child, _ = self._start(HOST_LIMIT_ENVIRONMENT, enforce=True)
        try:
            return self._evaluate(child, plan, Purpose.PROOF)
        finally:
            child.kill()

    def _reply(self, child: Child, request: dict[str, Any], *expected: str) -> dict[str, Any]:
        """Returns the reply of an expected kind; raises again what the child reports as an error, its last word."""
        reply = child.ask(request, self._beat)
        if reply["kind"] in expected:
            return reply
        child.kill()
        kind = getattr(errors, str(reply.get("type")), None)
        if not (isinstance(kind, type) and issubclass(kind, errors.AutofitError)):
            kind = errors.AutofitError
        message, text = str(reply.get("message", "")), str(reply.get("traceback", ""))
        raise kind(message, text) if issubclass(kind, errors.UserCodeError) else kind(message)

    def _retire(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
