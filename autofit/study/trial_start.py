"""TrialStart: the record of a trial at its start, and whether its process is still alive."""

import hashlib
import json
import os
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from autofit.core.environment import Environment
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.trial import Purpose

_LONGEST_TRIAL = timedelta(
    hours=24
)  # after this time, a trial of another host, whose processes cannot be checked, is treated as dead


@dataclass(frozen=True, slots=True)
class RunContext:
    """Facts common to all trials of this run."""

    environment: Environment
    digest: str
    objective: Objective
    memory_bytes: int

    @classmethod
    def of(cls, environment: Environment, objective: Objective, memory_bytes: int) -> Self:
        """Returns the context of a run that measures in `environment`."""
        return cls(environment, _digest(environment.model_dump(mode="json")), objective, memory_bytes)


def environment_of(record: object, digest: str) -> Environment:
    """Returns an environment from its record, after verifying its digest.

    Raises:
        ValueError: the record is not an environment, or was changed.
    """
    if _digest(record) != digest:
        raise ValueError(f"the environment {digest} was changed after it was written")
    return Environment.model_validate(record)


def _digest(record: object) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]


class TrialStart(BaseModel):
    """The stored record of a trial at its start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: Plan
    purpose: Purpose
    environment: str  # digest; the environment is an attribute of the study
    memory_bytes: int
    host: str
    pid: int
    process_start: int | None
    started: datetime
    deadline: datetime

    @classmethod
    def now(cls, plan: Plan, purpose: Purpose, context: RunContext) -> Self:
        """Returns the record of a trial that this process starts now."""
        started, process = datetime.now(UTC), process_of(os.getpid())
        return cls(
            plan=plan,
            purpose=purpose,
            environment=context.digest,
            memory_bytes=context.memory_bytes,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_start=None if process is None else process.start,
            started=started,
            deadline=started + _LONGEST_TRIAL,
        )

    @property
    def alive(self) -> bool:
        """Whether the process of this trial may still be alive."""
        if self.host != socket.gethostname():
            return datetime.now(UTC) < self.deadline
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it exists and belongs to another user
        process = process_of(self.pid)
        if process is None or self.process_start is None:
            return True
        return process.state not in "ZX" and process.start == self.process_start


class Process(NamedTuple):
    """The kernel's information on a process."""

    state: str  # one letter; Z and X are dead processes
    start: int  # clock ticks after boot: distinguishes it from a later process with the same pid


def process_of(pid: int) -> Process | None:
    """Returns the state of a process, or None where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and brackets
    return Process(state=fields[0], start=int(fields[19]))
