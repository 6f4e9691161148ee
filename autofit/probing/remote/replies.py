"""Replies: what a child answers, as the record that was asked for. Never loads torch."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autofit.core import errors
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.run_terms import RunTerms
from autofit.core.trial import Purpose
from autofit.probing.remote.child import Child, ChildEnded

_Record = TypeVar("_Record", bound=BaseModel)


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
        return parsed(child, asked(child, request, "outcome", patience_s, beat), Outcome)
    except ChildEnded as ended:
        return ended.outcome
