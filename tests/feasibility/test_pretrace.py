"""Ahead: which plans are looked at before any runs."""

from typing import Any

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Conflict, SearchSpace, SpaceFacts
from autofit.feasibility.feasibility import plans_to_estimate

SIZES = (1, 2, 4, 8, 16, 32)
BLOCKS = Knob(name="blocks", values=(0, 6, 12), default=0, growth=(1.0, 0.5, 0.1))
PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32")


def space(**changes: Any) -> SearchSpace:
    own = Plan(values={"micro_batch_size": 4, "accumulation_steps": 8, "blocks": 0, "precision": "fp32"})
    fields: dict[str, Any] = {"knobs": (BLOCKS, PRECISION), "sizes": SIZES, "global_batch_size": 32, "baseline": own}
    return SearchSpace(SpaceFacts(**(fields | changes)))


def estimate(plan: Plan) -> Estimate | None:
    """100 bytes that stay and 10 for each sample; other combinations are not known."""
    own = plan.values["blocks"] == 0 and plan.values["precision"] == "fp32"
    return Estimate(value_bytes=100 + 10 * plan.micro_batch_size) if own else None


def seen(memory_bytes: int, **changes: Any) -> list[tuple[int, int, str]]:
    plans = plans_to_estimate(space(**changes), estimate, memory_bytes)
    return [(p.micro_batch_size, int(p.values["blocks"]), str(p.values["precision"])) for p in plans]


def test_the_own_plans_about_the_limit_come_first_then_each_change_at_the_size_that_is_just_thought_too_large() -> None:
    assert seen(200) == [
        (8, 0, "fp32"), (16, 0, "fp32"),  # 180 and 260 bytes
        (32, 12, "fp32"), (16, 0, "bf16"),  # 132 bytes with all blocks; of bf16 nothing is thought
        (32, 6, "fp32"),  # 260 bytes with half of them, 180 at 16
    ]  # fmt: skip


def test_the_batch_stays_whole() -> None:
    assert all(plan.global_batch_size == 32 for plan in plans_to_estimate(space(), estimate, 200))


def test_where_nothing_fits_the_smallest_size_is_looked_at() -> None:
    assert seen(105) == [(1, 0, "fp32"), (8, 12, "fp32"), (1, 0, "bf16"), (2, 6, "fp32")]


def test_nothing_is_looked_at_where_memory_is_not_scarce() -> None:
    assert seen(840) == []
    assert seen(839) != []


def test_nothing_is_looked_at_where_the_own_combination_is_not_known_at_every_size() -> None:
    own = space().baseline
    assert plans_to_estimate(space(), lambda plan: estimate(plan) if plan == own else None, 200) == []


def test_one_size_says_nothing_of_growth() -> None:
    assert seen(20, sizes=(4,)) == []


def test_a_forbidden_change_is_left_out() -> None:
    conflict = Conflict(values={"precision": "bf16"}, reason="no")
    assert "bf16" not in [precision for _, _, precision in seen(200, forbidden=(conflict,))]
