"""The outcome of a plan on all ranks, from what each of them says."""

from typing import Any

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.probing.ranks.outcomes import APART, LEFT_OUT, joined_outcome, straggler

MIB = 2**20
GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"


def memory(size: int) -> Memory:
    return Memory(allocated_bytes=size, judged_bytes=size, judged_by="test")


def measured(size: int = MIB) -> Outcome:
    found = Measurement(step_times_s=(0.1,), samples_per_step=8, memory=memory(size))
    return Outcome(status=Status.MEASURED, measurement=found)


def failed(status: Status, reason: str = "injected") -> Outcome:
    return Outcome(status=status, reason=reason)


def said(failure: Outcome | None = None, size: int | None = None) -> dict[str, Any]:
    """Returns what a follower says at the end of a run."""
    return {
        "failure": None if failure is None else failure.model_dump(mode="json"),
        "memory": None if size is None else memory(size).model_dump(mode="json"),
    }


def test_the_peak_is_that_of_the_worst_rank() -> None:
    found = joined_outcome(measured(2 * MIB), [said(size=MIB), said(size=3 * MIB)], 4 * MIB)
    assert found.status is Status.MEASURED
    assert found.measurement is not None
    assert found.measurement.memory.judged_bytes == 3 * MIB
    assert joined_outcome(measured(2 * MIB), [said(size=MIB), said()], 4 * MIB) == measured(2 * MIB)


def test_a_rank_above_the_budget_is_named() -> None:
    found = joined_outcome(measured(2 * MIB), [said(size=MIB), said(size=3 * MIB)], 2 * MIB)
    assert found.status is Status.OVER_BUDGET
    assert found.reason == "rank 2: its peak 3 MiB is above the budget 2 MiB"


@pytest.mark.parametrize(
    ("leaders", "followers", "status", "reason"),
    [
        (failed(Status.USER_ERROR, GLOO), failed(Status.OUT_OF_MEMORY), Status.OUT_OF_MEMORY, "rank 1: injected"),
        (failed(Status.USER_ERROR, GLOO), failed(Status.USER_ERROR), Status.USER_ERROR, "rank 1: injected"),
        (failed(Status.OUT_OF_MEMORY), failed(Status.USER_ERROR, GLOO), Status.OUT_OF_MEMORY, "rank 0: injected"),
        (failed(Status.USER_ERROR), failed(Status.OUT_OF_MEMORY), Status.OUT_OF_MEMORY, "rank 1: injected"),
        (measured(), failed(Status.USER_ERROR), Status.USER_ERROR, "rank 1: injected"),
        (failed(Status.USER_ERROR), None, Status.USER_ERROR, "rank 0: injected"),
        (
            failed(Status.USER_ERROR, "RuntimeError: Expected to have finished reduction in the prior iteration ..."),
            None,
            Status.USER_ERROR,
            f"rank 0: {LEFT_OUT}",
        ),
    ],
)
@pytest.mark.fault("F41")
def test_the_cause_of_a_failure_is_no_consequence(
    leaders: Outcome, followers: Outcome | None, status: Status, reason: str
) -> None:
    found = joined_outcome(leaders, [said(followers), said()], MIB)
    assert (found.status, found.reason) == (status, reason)


def test_ranks_that_only_lost_each_other_timed_out() -> None:
    found = joined_outcome(failed(Status.USER_ERROR, GLOO), [said(failed(Status.USER_ERROR, GLOO))], MIB)
    assert found.status is Status.TIMED_OUT
    assert found.reason == APART


def test_a_leader_that_waits_until_its_time_is_over_says_what_ranks_have_to_do_together() -> None:
    lost = failed(Status.USER_ERROR, GLOO)
    found = joined_outcome(failed(Status.TIMED_OUT, "not finished in time"), [said(lost)], MIB)
    assert (found.status, found.reason) == (Status.TIMED_OUT, f"rank 0: not finished in time; {APART}")
    alone = joined_outcome(failed(Status.TIMED_OUT, "not finished in time"), [said()], MIB)
    assert alone.reason == "rank 0: not finished in time"


def test_a_rank_that_is_slower_in_most_rehearsals_is_named() -> None:
    even, uneven, disturbed = [1.0, 1.1, 0.9], [1.0, 1.6, 1.0], [3.0, 1.5, 1.0]
    assert straggler([uneven, uneven]) == "", "two rehearsals decide nothing"
    assert straggler([even, even, uneven, uneven]) == ""
    named = "rank 1 takes 1.6 times as long as the others for the same work"
    assert straggler([uneven, uneven, uneven, disturbed]) == named
    assert straggler([[2.0, 1.0]] * 4).startswith("rank 0 takes 2.0 times")
