"""Estimating, on made-up traces whose peaks can be worked out by hand. No torch, no process."""

import pytest

from autofit.core.errors import Untraceable, UsageError, UserCodeError
from autofit.core.plan import Plan
from autofit.estimation import estimate as estimating
from autofit.estimation.estimate import described, estimate
from autofit.memory.trace import Trace
from autofit.probing.remote.bench import Target
from tests.estimation.traces import (
    MIB,
    briefing,
    enlarged,
    trace_of,
)

"""Bytes a sample in a block, in one that is checkpointed, and of the parameters; their state takes twice that."""


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


def test_a_workload_that_cannot_be_traced_is_an_error_with_its_place() -> None:
    def stopped(plan: Plan) -> Trace:
        raise Untraceable("the result of aten.nonzero depends on data", "train.py:7: x[x > 0]")

    with pytest.raises(Untraceable, match=r"nonzero.*train.py:7") as caught:
        estimate(briefing(1000 * MIB), stopped)
    assert caught.value.exit_code == 2


def test_what_was_not_checked_is_said() -> None:
    (note,) = [note for note in estimate(briefing(1000 * MIB), trace_of).caveats if "gradient" in note]
    assert "tf32, bf16" in note
    assert "fp32," not in note.replace("tf32,", "")


def test_the_device_is_named_or_the_memory_is() -> None:
    assert described("h200", None).name == "NVIDIA H200"
    assert described(" CPU ", None).is_host
    assert not described("h200", None).is_host
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
