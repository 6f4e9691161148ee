"""Recorded tables: what is kept, what is refused, which plan is the fastest."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.errors import UsageError
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Conflict, SpaceFacts
from scripts.bench.search.replay.table import TABLE_SCHEMA, Block, Entry, Table, read_table

SAMPLES, TOKENS = Objective(), Objective(unit="tokens")
GLOBAL = 8


def plan_of(size: int, precision: str = "fp32") -> Plan:
    return Plan(
        values={"micro_batch_size": size, "accumulation_steps": GLOBAL // size, "precision": precision},
    )


def measured(*seconds: float, tokens: float | None = None) -> Outcome:
    memory = Memory(allocated_bytes=100, judged_bytes=100, judged_by="test")
    measurement = Measurement(step_times_s=seconds, samples_per_step=GLOBAL, memory=memory, tokens_per_step=tokens)
    return Outcome(status=Status.MEASURED, measurement=measurement, duration_s=1.5)


def too_large() -> Outcome:
    return Outcome(status=Status.OUT_OF_MEMORY, reason="tried to allocate 2 GiB", phase="backward")


def entry(size: int, outcome: Outcome, *blocks: Block, precision: str = "fp32") -> Entry:
    return Entry(plan=plan_of(size, precision), at_s=1.0, outcome=outcome, blocks=blocks)


def table_of(*entries: Entry, **changes: Any) -> Table:
    facts = SpaceFacts(
        knobs=(Knob(name="precision", values=("fp32", "bf16"), default="fp32"),),
        sizes=(1, 2, 8),
        global_batch_size=GLOBAL,
        baseline=plan_of(2),
    )
    environment = Environment(workload="a-b", device_type="cuda", device_name="Test", capacity_bytes=2**30)
    fields: dict[str, Any] = {
        "name": "test",
        "created": "2026-01-01T00:00:00+00:00",
        "environment": environment,
        "budget": Budget(memory_bytes=200),
        "space": facts,
        "entries": entries,
    }
    return Table(**{**fields, **changes})


def test_the_grid_is_every_allowed_plan_once_with_the_baseline_first() -> None:
    plans = table_of().plans
    assert plans[0] == plan_of(2)
    assert set(plans) == {plan_of(size, precision) for size in (1, 2, 8) for precision in ("fp32", "bf16")}
    assert len(plans) == 6


def test_a_forbidden_combination_is_no_part_of_the_grid() -> None:
    forbidden = (Conflict(values={"precision": "bf16"}, reason="cannot be"),)
    facts = table_of().space.model_copy(update={"forbidden": forbidden})
    assert set(table_of(space=facts).plans) == {plan_of(size) for size in (1, 2, 8)}


def test_failures_are_entries_and_missing_plans_are_named() -> None:
    table = table_of(entry(1, measured(1.0)), entry(8, too_large()))
    missing = table.missing()
    assert plan_of(8) not in missing
    assert set(missing) == {plan_of(2), *(plan_of(size, "bf16") for size in (1, 2, 8))}
    full = [entry(size, measured(1.0), precision=p) for size in (1, 2, 8) for p in ("fp32", "bf16")]
    assert table_of(*full).missing() == ()


def test_the_text_comes_back_as_the_same_table_with_a_line_for_each_entry() -> None:
    blocks = (Block(at_s=2.0, step_times_s=(0.1, 0.2)), Block(at_s=3.0, reason="out of memory: too tight"))
    table = table_of(entry(1, measured(0.5, 0.25), *blocks), entry(8, too_large()))
    text = table.to_json()
    assert read_table(text, "t.json") == table
    assert json.loads(text)["schema"] == TABLE_SCHEMA
    assert len([line for line in text.splitlines() if '"plan"' in line]) == 2
    assert read_table(table_of().to_json(), "t.json") == table_of()


def test_a_plan_has_one_entry() -> None:
    with pytest.raises(ValidationError, match="more than one entry"):
        table_of(entry(1, measured(1.0)), entry(1, measured(2.0)))


def test_an_entry_belongs_to_the_space() -> None:
    with pytest.raises(ValidationError, match="micro_batch_size=4"):
        table_of(entry(4, measured(1.0)))


def test_a_block_has_times_or_a_reason() -> None:
    with pytest.raises(ValidationError, match="or the reason why it has none"):
        Block(at_s=1.0)
    with pytest.raises(ValidationError, match="or the reason why it has none"):
        Block(at_s=1.0, step_times_s=(1.0,), reason="failed")


def test_a_misspelt_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="note"):
        table_of(note="x")


def test_the_score_is_the_median_block_and_the_probe_without_blocks() -> None:
    assert entry(1, measured(2.0, 4.0, 2.0)).score(SAMPLES) == GLOBAL / 2.0
    stalled = Block(at_s=4.0, step_times_s=(100.0, 100.0))
    failed = Block(at_s=5.0, reason="crashed: signal 9")
    blocks = (Block(at_s=2.0, step_times_s=(1.0, 1.0)), Block(at_s=3.0, step_times_s=(0.5,)), stalled, failed)
    # The probe may have been cut short as hopeless, on the worst batch only: it does not count beside blocks.
    assert entry(1, measured(9.0), *blocks).score(SAMPLES) == GLOBAL / 1.0
    assert entry(8, too_large()).score(SAMPLES) is None


def test_tokens_count_where_they_are_known() -> None:
    block = Block(at_s=2.0, step_times_s=(2.0,), tokens_per_step=100.0)
    assert entry(1, measured(9.0), block).score(TOKENS) == 50.0
    assert entry(1, measured(9.0), block).score(SAMPLES) == GLOBAL / 2.0
    assert entry(1, measured(4.0, tokens=100.0)).score(TOKENS) == 25.0
    assert entry(1, measured(4.0)).score(TOKENS) == 2.0
    varied = Block(at_s=2.0, step_times_s=(1.0, 1.0, 1.0, 5.0), tokens_per_step=100.0, cycle=4)
    assert entry(1, measured(9.0), varied).score(TOKENS) == 50.0


def test_the_best_plan_is_the_fastest_that_ran_inside_the_budget() -> None:
    over = Outcome(status=Status.OVER_BUDGET, reason="too much", measurement=measured(0.01).measurement)
    table = table_of(entry(1, measured(4.0)), entry(2, measured(2.0)), entry(8, over))
    best = table.best(SAMPLES)
    assert best is not None
    assert best.plan == plan_of(2)
    assert table_of(entry(8, over)).best(SAMPLES) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"schema": "autofit.table/2"}', "'autofit.table/2'.*reads autofit.table/1"),
        ("[]", "schema None"),
        ('{"schema": "autofit.table/1", "name": "x"}', "is not a valid table: created"),
    ],
)
def test_what_is_no_table_of_this_version_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        read_table(text, "grids/gpt.json")
    assert str(raised.value).startswith("grids/gpt.json")
