"""The outcome of a plan on all ranks, from what each of them says. Whole searches are in tests/ranks."""

from typing import Any

import pytest

from autofit.core.briefing import Options
from autofit.core.environment import Environment
from autofit.core.errors import UsageError
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.gates.compare import GradientDifference
from autofit.gates.verdict import Checked, at_fault
from autofit.probing.ranks.bench import LeadingBench, check_alike, divided, joined_outcome, straggler

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
    assert found.reason.startswith("the ranks no longer waited for each other: ")


@pytest.mark.parametrize(
    ("found", "rounded", "numerics", "passed"),
    [
        (GradientDifference(1e-8, 1e-3), False, "mixed", True),
        (GradientDifference(0.01, 0.05), True, "mixed", True),
        (GradientDifference(0.1, 0.05), True, "mixed", False),
        (GradientDifference(0.1, 0.05), True, "any", True),
        (GradientDifference(0.1, 1e-3), False, "any", False),
        (GradientDifference(reason="alone"), False, "mixed", True),
        (GradientDifference(reason="alone"), True, "mixed", False),
    ],
)
def test_a_layout_that_rounds_must_have_been_compared_and_may_be_allowed(
    found: GradientDifference, rounded: bool, numerics: Any, passed: bool
) -> None:
    bench = object.__new__(LeadingBench)
    bench._options = Options(numerics=numerics)
    name = "gather_precision=bf16 & layout=full"
    checked = bench._judged(name, found, Checked(caveats=("known",)), rounded=rounded)
    assert checked.passed is passed
    if not passed:
        assert [each.name for each in checked.refused] == [name]
        assert at_fault(["layout=full", "precision=bf16", "gather_precision=bf16"], checked.verdicts) == name
        assert checked.reason == f"{name}: {found.objection}"
    elif found.objection:
        kept = "; kept, as numerics='any' allows" if rounded else ""
        assert checked.caveats == ("known", f"{name}: {found.objection}{kept}")
    else:
        assert checked.caveats == ("known",)


def facts(batches: int = 8, **environment: Any) -> dict[str, Any]:
    place = {"workload": "a-b", "device_type": "cpu", "device_name": "chip", "capacity_bytes": 2**30, **environment}
    return {
        "environment": Environment(**place).model_dump(mode="json"),
        "parameters": ["weight [4, 4]"],
        "batch_size": 4,
        "batches": batches,
        "memory_bytes": 1,
    }


def test_ranks_that_differ_are_named_with_the_difference() -> None:
    check_alike([facts(), facts()])
    with pytest.raises(UsageError, match=r"rank 2 differs from rank 0: workload: c-b \(rank 0: a-b\); expected"):
        check_alike([facts(), facts(), facts(workload="c-b")])
    with pytest.raises(UsageError, match=r"rank 1 .*: torch: 2 \(rank 0: 1\); batches: 9 \(rank 0: 8\)"):
        check_alike([facts(versions={"torch": "1"}), facts(9, versions={"torch": "2"})])


def test_a_rank_that_is_slower_in_most_rehearsals_is_named() -> None:
    even, uneven, disturbed = [1.0, 1.1, 0.9], [1.0, 1.6, 1.0], [3.0, 1.5, 1.0]
    assert straggler([uneven, uneven]) == "", "two rehearsals decide nothing"
    assert straggler([even, even, uneven, uneven]) == ""
    named = "rank 1 takes 1.6 times as long as the others for the same work"
    assert straggler([uneven, uneven, uneven, disturbed]) == named
    assert straggler([[2.0, 1.0]] * 4).startswith("rank 0 takes 2.0 times")


def test_models_that_differ_are_named_by_their_first_parameter_that_does() -> None:
    other = facts() | {"parameters": ["weight [4, 5]", "bias [4]"]}
    with pytest.raises(UsageError, match=r"parameter: weight \[4, 5\] \(rank 0: weight \[4, 4\]\); expected"):
        check_alike([facts(), other])


@pytest.mark.parametrize(
    "given",
    [
        {"strategies": ("batching",)},
        {"without": ("layout", "precision")},
        {"strategies": ("batching",), "pinned": {"layout": "full"}},
    ],
)
def test_a_layout_that_is_not_searched_is_that_of_the_baseline(given: dict[str, Any]) -> None:
    found = divided(Options(**given), 2)
    assert found.ranks == 2
    assert found.pinned == {"layout": "replicated", **given.get("pinned", {})}
    assert found.strategies is not None
    assert {"batching", "layout"} <= {*found.strategies}
    assert "precision" not in found.strategies
    assert found.without == ()


def test_a_layout_that_is_searched_is_not_pinned() -> None:
    for given in (Options(), Options(strategies=("layout",), without=("precision",))):
        assert divided(given, 2) == given.model_copy(update={"ranks": 2})
