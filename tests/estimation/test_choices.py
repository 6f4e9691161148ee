"""Choices come from what knobs say of themselves, whoever offers them."""

from autofit.core.knob import Knob, Trade
from autofit.core.plan import Plan
from autofit.estimation.estimate import estimate
from autofit.estimation.estimation import Estimation, draw
from autofit.estimation.largest_batches import choices, traded
from autofit.memory.trace import Trace
from tests.estimation.traces import CHECKPOINTED, MIB, PRECISION, briefing, enlarged, peak_of

OFFLOAD = Knob(name="offload", values=(False, True, "auto"), default=False, same_memory=("auto",))
LAYOUT = Knob(name="layout", values=("plain", "tiled"), default="plain", same_memory=("tiled",))
PARTS = Knob(
    name="parts", values=(1, 4, 8), default=1, trades_memory=Trade(technique="splitting", counted="parts to split")
)


def halved(plan: Plan) -> Trace:
    """Returns the trace of a step of half the activations where they are offloaded, as from another package."""
    saved = (peak_of(plan) - 300 * MIB) // 2 if plan.values.get("offload") is True else 0
    return enlarged(1, lambda plan: -saved)(plan)


def test_each_value_is_looked_at_beside_the_baseline_which_comes_once() -> None:
    found = [(one.knob, one.value) for one in choices((LAYOUT, PRECISION, OFFLOAD, CHECKPOINTED))]
    assert found == [
        ("precision", "fp32"), ("precision", "tf32"), ("precision", "bf16"), ("offload", True), ("offload", "auto")
    ]  # fmt: skip


def test_knobs_that_leave_memory_as_it_is_are_left_out() -> None:
    (only,) = choices((LAYOUT, CHECKPOINTED))
    assert (only.knob, only.is_baseline, only.same_memory) == ("", True, True)


def test_a_second_knob_that_trades_memory_is_a_choice_as_any_other() -> None:
    assert traded((PRECISION, PARTS, CHECKPOINTED)) is PARTS
    assert [one.value for one in choices((PARTS, CHECKPOINTED))] == [0, 1, 2, 3, 4]


def test_the_knob_of_another_package_is_in_the_table_and_in_json() -> None:
    found = estimate(briefing(5000 * MIB, knobs=(PRECISION, OFFLOAD, CHECKPOINTED)), halved)
    rows = {row.name: row for row in found.rows}
    plain, other, same = rows["fp32"].largest, rows["offload=True"].largest, rows["offload=auto"]
    assert plain is not None
    assert other is not None
    assert other.plan.values["offload"] is True
    assert 1.9 < other.plan.micro_batch_size / plain.plan.micro_batch_size < 2.1
    assert (same.same_as, same.largest and same.largest.samples_per_s) == ("fp32", None)
    lines = draw(found).splitlines()
    assert any(line.split()[:2] == ["choice", "largest"] for line in lines)
    assert any(line.split()[:2] == ["offload=True", str(other.plan.micro_batch_size)] for line in lines)
    assert any(line.split() == ["offload=auto", "as", "fp32"] for line in lines)
    assert Estimation.model_validate_json(found.model_dump_json(by_alias=True)).rows == found.rows


def test_the_knob_of_another_package_that_trades_memory_is_worded_as_it_says() -> None:
    def split(plan: Plan) -> Trace:
        parts = int(plan.values["parts"])
        asked.append(parts)
        return enlarged(1, lambda plan: -(peak_of(plan) - 300 * MIB) * (parts - 1) // parts)(plan)

    asked: list[int] = []
    found = estimate(briefing(420 * MIB, knobs=(PARTS,)), split)
    assert set(asked) == {1, 4, 8}, "no number between the values"
    assert [need.blocks for need in found.rows[0].needs] == [4, 8]
    text = " ".join(draw(found).split())
    assert "without splitting, and the fewest parts to split for micro batches of 8 and 16" in text
    assert found.model_dump()["traded"]["knob"] == "parts"
    again = Estimation.model_validate_json(found.model_dump_json(by_alias=True))
    assert again.traded == found.traded
