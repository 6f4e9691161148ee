"""The exit code of a night: the worst of its jobs, and what counts as a regression."""

import pytest

from autofit.core import errors
from autofit.core.plan import Plan
from autofit.nightly.exit_codes import WORST_FIRST, FailOn, code_of, worst
from autofit.nightly.records import HistorySegment, NightRecord, Verdict, VerdictKind

SEGMENT = HistorySegment(workload="w", device="d", driver="", torch="2", protocol=1, plan="{}")


def record(kind: VerdictKind, changed: tuple[str, ...] = (), **fields: object) -> NightRecord:
    verdict = Verdict(kind=kind, reason="why", changed=changed)
    return NightRecord.model_validate({"id": "a", "job": "j", "night": "n", "at": "t", "verdict": verdict} | fields)


def test_every_exit_code_of_an_error_has_its_place() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AutofitError)]
    assert {kind.exit_code for kind in kinds} | {0, 4, 130} == set(WORST_FIRST)


@pytest.mark.parametrize(
    ("codes", "expected"), [((), 0), ((0, 4, 6), 4), ((4, 5), 5), ((0, 6, 7), 6), ((2, 5, 4), 2), ((130, 1), 130)]
)
def test_the_worst_code_wins(codes: tuple[int, ...], expected: int) -> None:
    assert worst(codes) == expected


@pytest.mark.parametrize(
    ("found", "regression", "change"),
    [
        (record(VerdictKind.STEADY), 0, 0),
        (record(VerdictKind.REGRESSION), 4, 4),
        (record(VerdictKind.FASTER), 0, 4),
        (record(VerdictKind.CANNOT_COMPARE), 0, 0),
        (record(VerdictKind.CANNOT_COMPARE, changed=("torch: 2.14, was 2.13",)), 0, 4),
        (record(VerdictKind.STEADY, proposed=Plan()), 0, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT), 4, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT, proposed=Plan()), 4, 4),
        (record(VerdictKind.DOES_NOT_FIT, segment=SEGMENT, proposed=Plan(), replaced=True), 0, 4),
        (record(VerdictKind.ERROR, segment=SEGMENT), 4, 4),  # the plan fails for another reason than memory
        (record(VerdictKind.ERROR), 0, 0),  # the job was not opened; its error has a code of its own
    ],
)
def test_what_counts_as_a_regression_and_as_a_change(found: NightRecord, regression: int, change: int) -> None:
    asked: list[tuple[FailOn, int]] = [("regression", regression), ("change", change), ("never", 0)]
    assert [code_of(found, fail_on) for fail_on, _ in asked] == [code for _, code in asked]
