"""Nights of one job that are judged one after the other, as the history grows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autofit.core.environment import Environment
from autofit.core.plan import Plan
from autofit.nightly.records import Figures, HistorySegment, NightRecord, Verdict
from autofit.nightly.verdict import Tonight, judge
from tests.nightly.history_samples import HERE, PLAN, record

MIB = 2**20
CALM = (100.0, 100.4, 99.7, 100.2, 99.8, 100.1, 99.9, 100.3, 99.6, 100.0)
"""Throughputs of calm nights: half a percent of noise."""


def figures(rate_per_s: float, peak_bytes: int = 100 * MIB, plan: Plan = PLAN) -> Figures:
    return Figures(plan=plan, rates_per_s=(rate_per_s,), peak_bytes=peak_bytes, judged_by="reserved")


class Judged(NamedTuple):
    """A verdict, and the second measurement if one was made."""

    verdict: Verdict
    confirmation: Figures | None


@dataclass
class Judgements:
    """The history of a job.

    Attributes:
        records: its records, oldest first.
        asked: number of second measurements that were asked for.
    """

    records: list[NightRecord] = field(default_factory=list)
    asked: int = 0

    def night(
        self,
        rate_per_s: float,
        again: float | None = None,
        peak_bytes: int = 100 * MIB,
        environment: Environment = HERE,
        **more: object,
    ) -> Judged:
        """Judges a night and adds its record.

        Args:
            rate_per_s: the first measurement.
            again: the second measurement, if it is asked for; None for the same as the first.
            peak_bytes: peak of both.
            environment: where it was measured.
            more: further fields of `Tonight`.
        """
        segment = HistorySegment.of(environment, PLAN)
        tonight = Tonight(segment, environment, figures(rate_per_s, peak_bytes), **more)  # type: ignore[arg-type]

        def confirm() -> Figures:
            self.asked += 1
            return figures(rate_per_s if again is None else again, peak_bytes)

        found = Judged(*judge(self.records, tonight, confirm))
        changes: dict[str, Any] = {
            "environment": environment, "segment": segment, "accepted": tonight.accepted,
            "confirmation": found.confirmation, "verdict": found.verdict,
        }  # fmt: skip
        self.records.append(record(len(self.records), **changes))
        return found

    def calm(self, count: int, level: float = 1.0, **more: object) -> None:
        """Adds calm nights."""
        for number in range(count):
            self.night(level * CALM[number % len(CALM)], **more)  # type: ignore[arg-type]


def kinds(records: Sequence[NightRecord]) -> list[str]:
    return [each.verdict.kind.value for each in records]


def after(count: int, level: float = 1.0) -> Judgements:
    """Returns a history of calm nights."""
    found = Judgements()
    found.calm(count, level)
    return found
