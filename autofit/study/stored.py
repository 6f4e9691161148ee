"""How trials and studies read back from their attributes in the storage. Loads no Optuna."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from autofit.core.environment import Environment
from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_bytes
from autofit.study.trial_start import TrialStart, environment_of

STUDY_SCHEMA = "autofit.study/1"
PREFIX = "autofit."
SCHEMA, OBJECTIVE = f"{PREFIX}schema", f"{PREFIX}objective"
ENVIRONMENT, DROPPED = f"{PREFIX}environment.", f"{PREFIX}dropped"
"""Attributes of a study; that of an environment ends with its digest."""
REQUEST, OUTCOME, CHECKSUM = f"{PREFIX}request", f"{PREFIX}outcome", ".sum"
"""Attributes of a trial; the checksum of each has this ending."""
STORED_LETTERS = 30_000
"""Maximum number of characters of one text. Escaped, it stays below the 64 KiB that a text has in MySQL."""
_CONTINUATION = re.compile(r"#[0-9]+$")


def first_of(name: str) -> str:
    """Returns the name of the study that a study continues: "net" for "net#2", and for "net" itself."""
    return _CONTINUATION.sub("", name)


class Drop(BaseModel):
    """A record of trials that are never returned again.

    Attributes:
        trials: numbers of the trials.
        reason: why they were dropped.
        when: UTC time in ISO 8601.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trials: tuple[int, ...]
    reason: str
    when: str


class Decoded(NamedTuple):
    """A trial as it was recorded; without outcome while it runs."""

    request: TrialStart
    environment: Environment
    outcome: Outcome | None


def decoded(trial: Mapping[str, Any], study: Mapping[str, Any], *, finished: bool) -> Decoded | None:
    """Returns the record of a trial; None for one without a record of autofit, or with one that cannot be read.

    Args:
        trial: attributes of the trial.
        study: attributes of its study, which hold the environments.
        finished: whether the trial has an outcome.
    """
    try:
        request = request_of(trial)
        environment = environment_of(study[ENVIRONMENT + request.environment], request.environment)
        outcome = outcome_of(trial) if finished else None
    except (LookupError, ValueError):  # pydantic's ValidationError is a ValueError
        return None
    return Decoded(request, environment, outcome)


def request_of(trial: Mapping[str, Any]) -> TrialStart:
    """Returns the record of a trial at its start, from the attributes of the trial.

    Raises:
        LookupError: there is none.
        ValueError: it was changed.
    """
    return TrialStart.model_validate_json(_verified(trial, REQUEST))


def outcome_of(trial: Mapping[str, Any]) -> Outcome:
    """Returns the outcome of a finished trial, from its attributes.

    Raises:
        LookupError: there is none.
        ValueError: it was changed.
    """
    return Outcome.model_validate_json(_verified(trial, OUTCOME))


def checksum(text: str) -> str:
    """Returns a checksum that shows whether a byte of a text has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def rejudged(outcome: Outcome, then_bytes: int, now_bytes: int) -> Outcome | None:
    """Returns an outcome under the budget `then_bytes` as judged by `now_bytes`, or None if that is unknown."""
    ran = outcome.status in (Status.MEASURED, Status.OVER_BUDGET)
    memory = outcome.measurement.memory if ran and outcome.measurement is not None else None
    if memory is not None and memory.judged_bytes > now_bytes:
        peak, budget = format_bytes(memory.judged_bytes), format_bytes(now_bytes)
        reason = f"its peak of {peak} ({memory.judged_by}) is above the memory budget of {budget}"
        return outcome.model_copy(update={"status": Status.OVER_BUDGET, "reason": reason})
    if not outcome.status.does_not_fit:
        return outcome
    # The times of a plan that was short of memory are not valid with more memory.
    if memory is None or memory.allocator_retries or memory.swallowed_ooms:
        return None if now_bytes > then_bytes else outcome
    return outcome.model_copy(update={"status": Status.MEASURED, "reason": ""})


def _verified(attributes: Mapping[str, Any], name: str) -> str:
    """Returns a record after verifying its checksum. Records of earlier versions have no checksum.

    Raises:
        LookupError: there is no record.
        ValueError: the record was changed.
    """
    text = str(attributes[name])
    if attributes.get(name + CHECKSUM, checksum(text)) != checksum(text):
        raise ValueError(f"{name} was changed after it was written")
    return text
