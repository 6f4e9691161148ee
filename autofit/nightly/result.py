"""NightResult: what one night found, for the outputs and the exit code."""

from pydantic import BaseModel, ConfigDict

from autofit.nightly.records import NightRecord


class NightResult(BaseModel):
    """One run over all jobs.

    Attributes:
        night: identifier of the night: the UTC time at which it began, in ISO 8601.
        records: the jobs that were checked, in the order in which they were checked.
        problems: errors of the jobs file, each as "file, line N: found ..; expected ..".
        unchecked: jobs that were not checked, each with the reason.
        exit_code: exit code of the night: the worst of all jobs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    night: str
    records: tuple[NightRecord, ...] = ()
    problems: tuple[str, ...] = ()
    unchecked: dict[str, str] = {}
    exit_code: int = 0
