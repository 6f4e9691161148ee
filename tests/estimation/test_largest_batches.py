"""What fits, precision by precision."""

from collections.abc import Callable

import pytest

from autofit.core.errors import SpaceError, Untraceable
from autofit.core.knob import Knob, Trade
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import Conflict, Refusal
from autofit.estimation.estimate import estimate
from autofit.estimation.estimation import Estimation, Row
from autofit.estimation.largest_batches import MOST
from autofit.memory.trace import Trace
from tests.estimation.traces import (
    CHECKPOINTED,
    MIB,
    briefing,
    enlarged,
    peak_of,
    trace_of,
)

"""Bytes a sample in a block, in one that is checkpointed, and of the parameters; their state takes twice that."""


class Tracing:
    """Traces; remembers what it was asked for."""

    def __init__(self, trace: Callable[[Plan], Trace] = trace_of) -> None:
        self.asked: list[Plan] = []
        self._trace = trace

    def __call__(self, plan: Plan) -> Trace:
        self.asked.append(plan)
        return self._trace(plan)


def rows_of(found: Estimation) -> dict[str, Row]:
    return {row.name: row for row in found.rows}


def largest_by_hand(budget: int, precision: str) -> int:
    fits = (
        b for b in range(1, 5000) if peak_of(Plan(values={"micro_batch_size": b, "precision": precision})) <= budget
    )
    return max(fits)


@pytest.mark.parametrize("budget", [700 * MIB, 5000 * MIB, 60_000 * MIB])
def test_the_largest_micro_batch_of_each_precision(budget: int) -> None:
    tracing = Tracing()
    found = rows_of(estimate(briefing(budget), tracing))
    for precision in ("fp32", "bf16"):
        largest = found[precision].largest
        assert largest is not None
        expected = largest_by_hand(budget, precision)
        assert 0.99 * expected <= largest.plan.micro_batch_size <= expected
        assert largest.peak.value_bytes == peak_of(largest.plan) <= budget
        assert largest.plan.values["checkpointed_blocks"] == 0
    assert len(tracing.asked) == len(set(tracing.asked)), "no plan is traced twice"
    assert len(tracing.asked) <= 16


def test_the_best_rate_is_that_of_the_device_however_many_operators_a_host_issues() -> None:
    def casting(plan: Plan) -> Trace:
        found, casts = trace_of(plan), 10**9 if plan.values["precision"] == "bf16" else 0
        assert found.work is not None
        micro = found.work.micro.model_copy(update={"operators": 10**6 + casts})
        return found.model_copy(update={"work": found.work.model_copy(update={"micro": micro})})

    found = rows_of(estimate(briefing(5000 * MIB), casting))
    rates = [found[name].largest.samples_per_s for name in ("fp32", "bf16")]  # type: ignore[union-attr]  # both fit
    assert rates == pytest.approx([10, 10]), "1 TFLOP a sample at 10 TFLOP/s"


def test_tf32_shares_the_memory_of_fp32_and_is_not_traced() -> None:
    tracing = Tracing()
    found = rows_of(estimate(briefing(5000 * MIB), tracing))
    largest, twin = found["fp32"].largest, found["tf32"].largest
    assert largest is not None
    assert twin is not None
    assert twin.peak == largest.peak
    assert twin.plan == largest.plan.replace(precision="tf32")
    assert found["tf32"].same_as == "fp32"
    # 1 TFLOP a sample at 10 or 80 TFLOP/s; nothing else takes time.
    assert largest.samples_per_s == pytest.approx(10)
    assert twin.samples_per_s == pytest.approx(80)
    assert all(plan.values["precision"] != "tf32" for plan in tracing.asked)


def test_the_sure_size_fits_by_its_upper_bound() -> None:
    found = rows_of(estimate(briefing(5000 * MIB), trace_of))
    row = found["fp32"]
    assert row.largest is not None
    assert row.surely is not None
    assert 0.9 * row.largest.plan.micro_batch_size <= row.surely < row.largest.plan.micro_batch_size
    assert 1.06 * peak_of(row.largest.plan.replace(micro_batch_size=row.surely)) <= 5000 * MIB + 1


def test_the_fewest_blocks_for_the_own_micro_batch_and_for_twice_that() -> None:
    # 300 MiB stand; 8 samples take 320 MiB, and 64 less for each checkpointed block; 16 take twice that.
    found = rows_of(estimate(briefing(500 * MIB), trace_of))
    assert [(need.micro_batch_size, need.blocks) for need in found["fp32"].needs] == [(8, 2), (16, 4)]
    assert [(need.micro_batch_size, need.blocks) for need in found["bf16"].needs] == [(8, 0), (16, 2)]
    for need in found["fp32"].needs:
        assert need.estimated is not None
        assert need.estimated.fits
        fewer = need.estimated.plan.replace(checkpointed_blocks=(need.blocks or 0) - 1)
        assert peak_of(fewer) > 500 * MIB


def test_where_no_number_of_blocks_suffices_that_is_said() -> None:
    found = rows_of(estimate(briefing(400 * MIB), trace_of))
    own, double = found["fp32"].needs
    assert (own.blocks, double.blocks) == (4, None)
    assert double.estimated is not None
    assert double.estimated.plan.values["checkpointed_blocks"] == 4
    assert not double.estimated.fits


def test_a_model_that_can_only_checkpoint_all_blocks_is_asked_for_no_other_number() -> None:
    def all_or_none(plan: Plan) -> Trace:
        if plan.values["checkpointed_blocks"] not in (0, 4):
            raise SpaceError("only all")
        return trace_of(plan)

    knobs = (CHECKPOINTED.model_copy(update={"values": (0, 4), "trades_memory": Trade(technique="t", counted="c")}),)
    (row,) = estimate(briefing(500 * MIB, knobs=knobs), all_or_none).rows
    assert [need.blocks for need in row.needs] == [4, 4]


def test_a_global_batch_is_kept_and_caps_the_micro_batch() -> None:
    own: dict[str, KnobValue] = {
        "micro_batch_size": 4,
        "accumulation_steps": 3,
        "precision": "fp32",
        "checkpointed_blocks": 0,
    }
    given = briefing(60_000 * MIB, global_batch_size=12, sizes=(1, 2, 3, 4), baseline=Plan(values=own))
    tracing = Tracing()
    found = rows_of(estimate(given, tracing))
    assert found["fp32"].largest is not None
    assert found["fp32"].largest.plan.micro_batch_size == 12
    assert "global batch" in found["fp32"].capped
    assert {plan.global_batch_size for plan in tracing.asked} == {12}
    assert [need.micro_batch_size for need in found["fp32"].needs] == [4, 12]


def test_a_loader_that_cannot_be_resized_is_asked_for_its_own_batch_only() -> None:
    tracing = Tracing()
    refused = (Refusal(name="micro_batch_size", reason="cannot be cut"),)
    found = rows_of(estimate(briefing(60_000 * MIB, sizes=(8,), refused=refused), tracing))
    assert {plan.micro_batch_size for plan in tracing.asked} == {8}
    assert found["fp32"].largest is not None
    assert "neither cut nor joined" in found["fp32"].capped
    assert [need.micro_batch_size for need in found["fp32"].needs] == [8]


def test_a_free_batch_ends_somewhere_and_says_so() -> None:
    found = rows_of(estimate(briefing(2**50), trace_of))
    assert found["fp32"].largest is not None
    assert found["fp32"].largest.plan.micro_batch_size == MOST
    assert found["fp32"].capped


def test_without_knobs_there_is_one_row_of_the_users_own() -> None:
    (row,) = estimate(briefing(1000 * MIB, knobs=()), trace_of).rows
    assert (row.name, row.needs) == ("", ())
    assert row.largest is not None


def test_the_largest_batch_that_surely_fits_is_found_wherever_the_first_guess_leads() -> None:
    """Before, "sure of 32" stood beside "largest 270" for a ResNet-50, and "sure of none" beside 514."""
    wavy = {size: (size % 3) * 120 * MIB for size in range(1, 2000)}

    def tracer(plan: Plan) -> Trace:
        return enlarged(1, lambda plan: wavy[plan.micro_batch_size])(plan)

    found = estimate(briefing(9000 * MIB, knobs=(Knob(name="precision", values=("fp32",), default="fp32"),)), tracer)
    (row,) = found.rows
    assert row.largest is not None
    assert row.surely is not None
    assert 0.88 * row.largest.plan.micro_batch_size <= row.surely < row.largest.plan.micro_batch_size


@pytest.mark.parametrize("error", [Untraceable("an odd operator", "train.py:7"), SpaceError("bf16 cannot be applied")])
def test_a_precision_that_cannot_be_traced_keeps_its_reason_and_the_others_their_rows(error: Exception) -> None:
    def trace(plan: Plan) -> Trace:
        if plan.values["precision"] == "bf16":
            raise error
        return trace_of(plan)

    found = rows_of(estimate(briefing(1000 * MIB), trace))
    assert found["bf16"].largest is None
    assert ("odd operator (train.py:7)" in found["bf16"].reason) or ("cannot be applied" in found["bf16"].reason)
    assert found["fp32"].largest is not None


def test_a_forbidden_combination_keeps_its_reason() -> None:
    conflict = Conflict(values={"precision": "bf16", "checkpointed_blocks": 0}, reason="they do not go together")
    found = rows_of(estimate(briefing(1000 * MIB, forbidden=(conflict,)), trace_of))
    assert found["bf16"].reason == "they do not go together"
