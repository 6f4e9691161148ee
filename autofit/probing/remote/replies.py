"""Replies: what a child answers, as the record that was asked for. Never loads torch."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from autofit.core import errors
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.run_terms import RunTerms
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from autofit.probing.remote.child import Child, ChildEnded


def asked(
    child: Child,
    request: dict[str, Any],
    expected: str | tuple[str, ...],
    patience_s: float,
    beat: Callable[[str], None],
) -> dict[str, Any]:
    """Returns the reply of an expected kind.

    Raises:
        ChildEnded: as in `Child.ask`.
        AutofitError: any other reply is the child's final error, which is raised here. The child is gone then.
    """
    reply = child.ask(request, beat, patience_s)
    if reply["kind"] in ((expected,) if isinstance(expected, str) else expected):
        return reply
    child.kill()
    kind = getattr(errors, str(reply.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.AutofitError)):
        kind = errors.AutofitError
    message, text = str(reply.get("message", "")), str(reply.get("traceback", ""))
    raise kind(message, text) if issubclass(kind, errors.UserCodeError) else kind(message)


def evaluated(
    child: Child, plan: Plan, purpose: Purpose, terms: RunTerms, patience_s: float, beat: Callable[[str], None]
) -> Outcome:
    """Returns the outcome of a plan that the child runs. A child that ends or sends no valid outcome is an outcome too.

    Raises:
        AutofitError: the child reported it.
    """
    request: dict[str, Any] = {"do": "evaluate", "plan": plan.model_dump(mode="json"), "purpose": purpose.value}
    request["terms"] = terms.model_dump(mode="json")
    try:
        return Outcome.model_validate(asked(child, request, "outcome", patience_s, beat).get("outcome"))
    except ChildEnded as ended:
        return ended.outcome
    except ValidationError as error:
        child.kill()
        first = error.errors()[0]["msg"]
        return Outcome(status=Status.CRASHED, reason=f"the probe's process sent no valid outcome: {first}")


def checked(
    child: Child, plan: Plan, known: Mapping[str, GateVerdict], patience_s: float, beat: Callable[[str], None]
) -> Checked:
    """Returns the result of a check that the child makes.

    Raises:
        ChildEnded: as in `Child.ask`.
        AutofitError: the child reported it.
    """
    verdicts = {name: verdict.model_dump(mode="json") for name, verdict in known.items()}
    request = {"do": "check", "plan": plan.model_dump(mode="json"), "known": verdicts}
    try:
        return Checked.model_validate(asked(child, request, "checked", patience_s, beat).get("checked"))
    except ValidationError as error:
        child.kill()
        first = error.errors()[0]["msg"]
        reason = f"could not be checked: the probe's process sent no valid result: {first}"
        return Checked(passed=False, checked=False, reason=reason)


def trace_of(reply: dict[str, Any]) -> Trace:
    """Returns the trace in a reply.

    Raises:
        Untraceable: the reply has a reason instead, or no valid trace.
    """
    if "trace" not in reply:
        raise errors.Untraceable(str(reply.get("reason")), str(reply.get("where")))
    try:
        return Trace.model_validate(reply["trace"])
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise errors.Untraceable(f"no valid trace came back: {first}", "from its process") from None
