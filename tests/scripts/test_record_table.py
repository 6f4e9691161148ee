"""Recording a table: complete, interleaved, resumed where it was, never mixed with something else."""

from collections import Counter
from pathlib import Path

import pytest

from autofit.core.budget import Clock
from autofit.core.errors import UsageError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from scripts.bench.search import record_table
from scripts.bench.search.replay.table import Table, read_table
from tests.fakes import FakeBench, briefing_of, small_bench

pytestmark = pytest.mark.slow


def recording(
    bench: FakeBench, path: Path, sizes: list[int] | None = None, close_rounds: int = 0
) -> record_table.Recording:
    briefing = briefing_of(bench)
    space = record_table.restricted(briefing.space, sizes or briefing.space.sizes[::4])
    return record_table.open_recording(path, "test", briefing, space, rounds=2, seed=0, close_rounds=close_rounds)


def saved(path: Path) -> Table:
    return read_table(path.read_text(), str(path))


def test_a_complete_table_has_every_plan_and_the_rounds_of_those_that_fit(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"
    assert recording(bench, path).run(bench.evaluate, Clock(bench.time), 1e9)
    table = saved(path)
    assert table.missing() == ()
    assert {len(e.blocks) for e in table.entries if e.outcome.measured} == {2}
    unfit = [entry for entry in table.entries if not entry.outcome.measured]
    assert unfit
    assert all(not entry.blocks and entry.outcome.reason for entry in unfit)


def test_rounds_are_interleaved_in_another_order_each(tmp_path: Path) -> None:
    bench = small_bench()
    recording(bench, tmp_path / "t.json").run(bench.evaluate, Clock(bench.time), 1e9)
    blocks = [plan for plan, purpose in bench.runs if purpose is Purpose.BLOCK]
    first, second = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
    assert set(first) == set(second)
    assert len(set(first)) == len(first)
    assert first != second
    probes = [plan for plan, purpose in bench.runs if purpose is Purpose.PROBE]
    assert probes != sorted(probes, key=lambda plan: plan.micro_batch_size)


def test_plans_that_are_close_to_the_fastest_under_some_limit_have_more_rounds(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"
    assert recording(bench, path, close_rounds=6).run(bench.evaluate, Clock(bench.time), 1e9)
    fits = [entry for entry in saved(path).entries if entry.outcome.measured]
    peaks = {entry.plan: bench.peak_bytes(entry.plan) for entry in fits}
    limits = {plan: max(peak, peaks[bench.space.baseline]) for plan, peak in peaks.items()}
    speed = {
        plan: bench.samples_per_s(plan) / max(bench.samples_per_s(p) for p, peak in peaks.items() if peak <= limit)
        for plan, limit in limits.items()
    }
    assert all(len(entry.blocks) == 6 for entry in fits if speed[entry.plan] > 0.92)
    assert all(len(entry.blocks) == 2 for entry in fits if speed[entry.plan] < 0.78)
    assert {len(entry.blocks) for entry in fits} >= {2, 6}
    fastest = max(bench.samples_per_s(entry.plan) for entry in fits)
    assert any(len(entry.blocks) == 6 and bench.samples_per_s(entry.plan) < 0.7 * fastest for entry in fits)


def test_a_recording_that_was_cut_short_goes_on_and_runs_nothing_twice(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"
    clock = Clock(bench.time)
    assert not recording(bench, path).run(bench.evaluate, clock, 20.0)
    before = saved(path)
    assert 0 < len(before.entries) < len(before.plans)
    while not recording(bench, path).run(bench.evaluate, Clock(bench.time), 50.0):
        pass
    assert saved(path).missing() == ()
    runs = Counter(bench.runs)
    assert {count for (_, purpose), count in runs.items() if purpose is Purpose.PROBE} == {1}
    assert {count for (_, purpose), count in runs.items() if purpose is Purpose.BLOCK} == {2}
    assert saved(path).entries[: len(before.entries)] == tuple(
        entry.model_copy(update={"blocks": after.blocks})
        for entry, after in zip(before.entries, saved(path).entries, strict=False)
    )


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if len(bench.runs) == 3:
            raise KeyboardInterrupt
        return bench.evaluate(plan, purpose)

    with pytest.raises(KeyboardInterrupt):
        recording(bench, path).run(evaluate, Clock(bench.time), 1e9)
    assert len(saved(path).entries) == 3


def test_a_failed_block_is_kept_with_its_reason_and_a_doubtful_probe_is_repeated(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"
    asked: list[Plan] = []

    def evaluate(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        asked.append(plan)
        if purpose is Purpose.BLOCK:
            return Outcome(status=Status.CRASHED, reason="signal 11", traceback_text="/home/someone/train.py")
        if len(asked) == 1:
            return Outcome(status=Status.AMBIGUOUS, reason="may mean memory")
        return bench.evaluate(plan, purpose)

    recording(bench, path).run(evaluate, Clock(bench.time), 1e9)
    table = saved(path)
    assert asked[0] == asked[1] != asked[2]
    assert all(entry.outcome.status is not Status.AMBIGUOUS for entry in table.entries)
    reasons = {block.reason for entry in table.entries for block in entry.blocks}
    assert reasons == {"crashed: signal 11"}
    assert "/home/someone" not in path.read_text()


def test_another_budget_space_or_machine_is_refused_with_what_differs(tmp_path: Path) -> None:
    bench, path = small_bench(), tmp_path / "t.json"
    recording(bench, path).run(bench.evaluate, Clock(bench.time), 20.0)
    text = path.read_text()
    richer = small_bench()
    richer.budget_bytes *= 2
    with pytest.raises(UsageError, match=f"budget: {richer.budget_bytes}, was {bench.budget_bytes} bytes"):
        recording(richer, path)
    with pytest.raises(UsageError, match="the plans differ"):
        recording(bench, path, sizes=[bench.space.sizes[0]])
    briefing = briefing_of(bench)
    other = briefing.environment.model_copy(update={"device_name": "Other"})
    moved = briefing.model_copy(update={"environment": other})
    with pytest.raises(UsageError, match=r"device: .*Other.*, was "):
        record_table.open_recording(path, "test", moved, briefing.space, rounds=2, seed=0)
    assert path.read_text() == text


def test_sizes_that_may_not_be_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sizes \[12345\] are not in the space"):
        recording(small_bench(), tmp_path / "t.json", sizes=[12345])


def test_a_part_of_the_values_is_recorded_and_those_of_the_baseline_with_it() -> None:
    facts = small_bench().space.facts
    part = record_table.restricted(facts, [16], {"precision": ["bf16"], "optimizer": ["fused"]})
    assert {knob.name: knob.values for knob in part.knobs} == {
        "precision": ("float32", "bf16"),
        "checkpoint": ("none", "third", "half", "all"),
        "optimizer": ("own", "fused"),
        "memory_format": ("contiguous", "channels_last"),
    }
    assert part.knobs[0].growth == (1.0, 0.65)
    assert part.sizes == (8, 16)
    assert part.baseline == facts.baseline


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"precision": ["fp8", "bf16"]}, "precision=fp8 is not in the space; expected some of float32, tf32, bf16"),
        ({"compile": ["default"]}, "compile=default is not in the space; expected some of precision, checkpoint"),
    ],
)
def test_a_value_that_is_not_there_is_refused(values: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        record_table.restricted(small_bench().space.facts, None, values)
