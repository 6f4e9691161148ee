"""Records as they are read back: whole, or not at all; and what they say under another budget."""

from typing import Any

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.study.reading import read_studies
from autofit.study.stored import CHECKSUM, OUTCOME, REQUEST, checksum, decoded, first_of, rejudged
from tests.recorded import recorded_search

MIB = 2**20


def outcome(peak_mib: int, status: Status = Status.MEASURED, **memory: Any) -> Outcome:
    read = Memory(allocated_bytes=peak_mib * MIB, judged_bytes=peak_mib * MIB, judged_by="footprint", **memory)
    reason = "" if status is Status.MEASURED else "too large"
    return Outcome(
        status=status, reason=reason, measurement=Measurement(step_times_s=(1.0,), samples_per_step=8, memory=read)
    )


def test_a_peak_is_judged_by_the_budget_of_the_reader() -> None:
    assert rejudged(outcome(10), 20 * MIB, 15 * MIB) == outcome(10)
    assert rejudged(outcome(10), 20 * MIB, 5 * MIB) == outcome(10).model_copy(
        update={
            "status": Status.OVER_BUDGET,
            "reason": "its peak of 10 MiB (footprint) is above the memory budget of 5 MiB",
        }
    )
    found = rejudged(outcome(10, Status.OVER_BUDGET), 5 * MIB, 20 * MIB)
    assert found is not None
    assert (found.status, found.reason) == (Status.MEASURED, "")


def test_a_plan_that_was_short_of_memory_says_nothing_of_a_larger_budget() -> None:
    short = outcome(10, Status.OVER_BUDGET, allocator_retries=1)
    assert rejudged(short, 5 * MIB, 20 * MIB) is None
    assert rejudged(short, 12 * MIB, 11 * MIB) == short


def test_a_changed_record_is_not_read(tmp_path: Any) -> None:
    recorded_search(tmp_path / "study.db")
    (study,) = read_studies(tmp_path / "study.db")
    first = study.trials[0].trial
    text = first.outcome.model_dump_json()
    request = '{"plan": 1}'
    attributes = {OUTCOME: text, OUTCOME + CHECKSUM: checksum(text), REQUEST: request}
    assert decoded(attributes, study.notes, finished=True) is None
    assert decoded({}, study.notes, finished=True) is None
    assert checksum(text) != checksum(text + " ")


@pytest.mark.parametrize("status", [Status.CRASHED, Status.USER_ERROR])
def test_what_has_nothing_to_do_with_memory_stays(status: Status) -> None:
    crashed = Outcome(status=status, reason="no")
    assert rejudged(crashed, 1, 2) == crashed


@pytest.mark.parametrize(("name", "first"), [("net", "net"), ("net#2", "net"), ("net#12", "net"), ("a#b", "a#b")])
def test_a_continuation_has_the_name_of_its_first_study(name: str, first: str) -> None:
    assert first_of(name) == first
