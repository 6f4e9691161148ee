"""Where nothing fits, by how much is said, and what would help."""

from autofit.estimation.estimate import estimate
from tests.estimation.traces import MIB, briefing, enlarged, trace_of

"""Bytes a sample in a block, in one that is checkpointed, and of the parameters; their state takes twice that."""


def test_a_budget_below_what_stands_says_by_how_much_and_what_would_help() -> None:
    found = estimate(briefing(250 * MIB), trace_of)
    assert not found.own.fits
    assert "add up to 400 MiB: 150 MiB more than the budget of 250 MiB" in found.shortfall
    assert "SGD without momentum: 200 MiB less" in found.shortfall


def test_a_budget_below_the_smallest_plan_names_that_plan() -> None:
    found = estimate(briefing(450 * MIB), enlarged(1, lambda plan: 200 * MIB))
    assert "micro_batch_size=1" in found.shortfall
    assert "precision=bf16 checkpointed_blocks=4, needs 504 MiB: 54 MiB more" in found.shortfall


def test_a_smaller_batch_that_fits_only_with_checkpointing_is_named() -> None:
    tracer = enlarged(4, lambda plan: 0 if plan.values["checkpointed_blocks"] == 4 else 500 * MIB)
    found = estimate(briefing(405 * MIB), tracer)
    assert all(row.largest is None and row.needs[0].blocks is None for row in found.rows)
    assert found.shortfall == ""
    assert any("micro_batch_size=1" in note and "checkpointed_blocks=4" in note for note in found.caveats)
