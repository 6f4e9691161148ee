"""NightResult: what one night found, for its outputs and its exit code."""

from pydantic import BaseModel, ConfigDict

from autofit.nightly.records import NightRecord


class NightResult(BaseModel):
    """What one night found.

    Attributes:
        night: identifier of the night: the UTC time at which it began, in ISO 8601.
        records: one record for each job that was checked, in the order in which they were checked. A continued night
            has those of its earlier processes first.
        problems: errors of the jobs file, each with file, line, what was found and what was expected.
        unchecked: for each job that was not checked, the reason.
        notes: what people should know of the night besides: a hook that failed, a database that is away.
        exit_code: exit code of the command line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    night: str
    records: tuple[NightRecord, ...] = ()
    problems: tuple[str, ...] = ()
    unchecked: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    exit_code: int = 0
