"""Estimating, on made-up traces whose peaks can be worked out by hand. No torch, no process."""

from collections.abc import Callable

import pytest

from autofit.core.account import Account
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.errors import SpaceError, Untraceable, UsageError, UserCodeError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Refusal, SpaceFacts
from autofit.core.work import Ceilings, StepWork, Work
from autofit.estimation import estimate as estimating
from autofit.estimation.estimate import described, estimate
from autofit.estimation.estimation import Estimation
from autofit.estimation.outlook import MOST
from autofit.estimation.records import Row
from autofit.memory.trace import Kind, Mark, Tensors, Trace
from autofit.probing.remote.bench import Target

MIB = 2**20
BLOCKS, BLOCK, KEPT, WEIGHTS = 4, 10 * MIB, 2 * MIB, 100 * MIB
"""Bytes a sample in a block, in one that is checkpointed, and of the parameters; their state takes twice that."""
PRECISION = Knob(name="precision", values=("fp32", "tf32", "bf16"), default="fp32")
CHECKPOINTED = Knob(name="checkpointed_blocks", values=(0, 1, 2, 3, 4), default=0)


def peak_of(plan: Plan) -> int:
    """Returns the live tensors of `trace_of` at their peak: while the backward pass begins."""
    values = plan.values
    kept = int(values.get("checkpointed_blocks", 0))
    samples = plan.micro_batch_size * ((BLOCKS - kept) * BLOCK + kept * KEPT)
    return 3 * WEIGHTS + (samples // 2 if values.get("precision") == "bf16" else samples)


def trace_of(plan: Plan) -> Trace:
    """Returns one step: parameters, state, then activations, then gradients in their place."""
    activations = peak_of(plan) - 3 * WEIGHTS
    kinds = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.ACTIVATION, Kind.GRADIENT)
    return Trace(
        micro_batch_size=plan.micro_batch_size,
        tensors=Tensors(sizes=(WEIGHTS, 2 * WEIGHTS, activations, WEIGHTS), kinds=kinds, origins=(-1, -1, 1, -1)),
        events=(0, 1, 2, ~2, 3, ~3),
        marks=(
            Mark(name="step 1 forward", event=2),
            Mark(name="step 1 backward", event=3),
            Mark(name="step 1 optimizer", event=5),
            Mark(name="end", event=6),
        ),
        modules=("", "blocks.0"),
        notes=("a note of the trace",),
        work=StepWork(micro=Work(flops={"fp32": 10**12 * plan.micro_batch_size}), update=Work()),
    )


def briefing(budget: int, **changes: object) -> Briefing:
    knobs = changes.pop("knobs", (PRECISION, CHECKPOINTED))
    own = {"micro_batch_size": 8, "accumulation_steps": 1, **{knob.name: knob.default for knob in knobs}}  # type: ignore[attr-defined]  # a tuple of knobs
    facts = {"knobs": knobs, "sizes": (1, 2, 4, 8, 16), "global_batch_size": None, "baseline": Plan(values=own)}
    return Briefing(
        space=SpaceFacts.model_validate(facts | changes),
        environment=Environment(workload="a-b", device_type="cpu", device_name="Test", capacity_bytes=2**40),
        budget=Budget(memory_bytes=budget),
        enforced=False,
        account=Account(allocator="host"),
        ceilings=Ceilings(flops_per_s={"fp32": 1e13, "tf32": 8e13}, bytes_per_s=1e12, operator_s=1e-6, ahead=True),
        caveats=("a caveat of the bench",),
    )


class Tracing:
    """Traces; remembers what it was asked for."""

    def __init__(self, trace: Callable[[Plan], Trace] = trace_of) -> None:
        self.asked: list[Plan] = []
        self._trace = trace

    def __call__(self, plan: Plan) -> Trace:
        self.asked.append(plan)
        return self._trace(plan)


def rows_of(found: Estimation) -> dict[str, Row]:
    return {row.precision: row for row in found.rows}


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

    knobs = (CHECKPOINTED.model_copy(update={"values": (0, 4)}),)
    (row,) = estimate(briefing(500 * MIB, knobs=knobs), all_or_none).rows
    assert [need.blocks for need in row.needs] == [4, 4]


def test_a_global_batch_is_kept_and_caps_the_micro_batch() -> None:
    own = {"micro_batch_size": 4, "accumulation_steps": 3, "precision": "fp32", "checkpointed_blocks": 0}
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
    assert (row.precision, row.needs) == ("", ())
    assert row.largest is not None


def test_the_own_plan_with_what_makes_up_its_peak() -> None:
    found = estimate(briefing(1000 * MIB), trace_of, "train.py:make")
    assert (found.target, found.own.plan.micro_batch_size, found.own.fits) == ("train.py:make", 8, True)
    assert found.own.peak.value_bytes == sum(part.size_bytes for part in found.breakdown.kinds) == 620 * MIB
    assert {part.name: part.size_bytes // MIB for part in found.breakdown.standing} == {
        "parameter": 100, "gradient": 100, "optimizer state": 200
    }  # fmt: skip
    assert [(part.name, part.size_bytes // MIB) for part in found.breakdown.modules] == [("blocks.*", 320)]
    assert {"a caveat of the bench", "a note of the trace"} <= set(found.caveats)
    assert found.shortfall == ""


def test_a_budget_below_what_stands_says_by_how_much_and_what_would_help() -> None:
    found = estimate(briefing(250 * MIB), trace_of)
    assert not found.own.fits
    assert "make 400 MiB: 150 MiB more than the budget of 250 MiB" in found.shortfall
    assert "SGD without momentum: 200 MiB less" in found.shortfall


def enlarged(times: int, more: Callable[[Plan], int]) -> Callable[[Plan], Trace]:
    """Returns a tracer whose activations are so many times as large, and more."""

    def trace(plan: Plan) -> Trace:
        found = trace_of(plan)
        first, second, activations, last = found.tensors.sizes
        sizes = (first, second, times * activations + more(plan), last)
        return found.model_copy(update={"tensors": found.tensors.model_copy(update={"sizes": sizes})})

    return trace


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


def test_a_workload_that_cannot_be_traced_is_an_error_with_its_place() -> None:
    def stopped(plan: Plan) -> Trace:
        raise Untraceable("the result of aten.nonzero depends on data", "train.py:7: x[x > 0]")

    with pytest.raises(Untraceable, match=r"nonzero.*train.py:7") as caught:
        estimate(briefing(1000 * MIB), stopped)
    assert caught.value.exit_code == 2


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
    key = Plan(values={"precision": "bf16", "checkpointed_blocks": 0}).key
    found = rows_of(estimate(briefing(1000 * MIB, forbidden={key: "they do not go together"}), trace_of))
    assert found["bf16"].reason == "they do not go together"


def test_what_no_gate_has_checked_is_said() -> None:
    (note,) = [note for note in estimate(briefing(1000 * MIB), trace_of).caveats if "gradient" in note]
    assert "tf32, bf16" in note
    assert "fp32," not in note.replace("tf32,", "")


def test_the_device_is_named_or_the_memory_is() -> None:
    assert described("h200", None).name == "NVIDIA H200"
    assert described(" CPU ", None).type == "cpu"
    unnamed = described(None, "24GiB")
    assert (unnamed.capacity_bytes, unnamed.capability) == (None, (8, 0))


@pytest.mark.parametrize("memory", [None, 0.5])
def test_neither_device_nor_memory_is_a_usage_error(memory: float | None) -> None:
    with pytest.raises(UsageError, match="neither a device nor an amount of memory") as caught:
        described(None, memory)
    assert "H200" in str(caught.value)


@pytest.mark.parametrize("sign", ["Torch not compiled with CUDA enabled", "No CUDA GPUs are available"])
def test_a_factory_that_wants_an_accelerator_gets_a_hint(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(target: Target, beat: object) -> None:
        raise UserCodeError(f"make raised AssertionError: {sign}", "line 3: model.cuda()")

    monkeypatch.setattr(estimating, "RemoteBench", opens)
    with pytest.raises(UserCodeError, match=sign) as caught:
        estimating.estimate_target(Target("train.py:make"))
    assert "on the CPU, without .cuda()" in str(caught.value)
    assert caught.value.traceback_text == "line 3: model.cuda()"


def test_any_other_error_of_a_factory_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(target: Target, beat: object) -> None:
        raise UserCodeError("make raised ValueError: no data")

    monkeypatch.setattr(estimating, "RemoteBench", opens)
    with pytest.raises(UserCodeError, match=r"no data$"):
        estimating.estimate_target(Target("train.py:make"))
