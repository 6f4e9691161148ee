"""What the benches of ranks ask of each other. Whole searches are in tests/ranks."""

from typing import Any

import pytest

from autofit.core.briefing import Options
from autofit.core.environment import Environment
from autofit.core.errors import UsageError
from autofit.gates.compare import GradientDifference
from autofit.gates.verdict import Checked, at_fault
from autofit.probing.ranks.bench import LeadingBench, check_alike, divided


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
