"""The synthetic tables: each trap is really there, the truth is what the table says, and a seed decides all of it."""

from functools import cache
from statistics import median, pstdev

import pytest

from autofit.core.objective import Objective
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from scripts.bench.search.replay import TableBench
from scripts.bench.search.replay.table import Entry, Table
from scripts.bench.search.tables import Synthetic, synthetic
from scripts.bench.search.traps import HALF, TRAPS

pytestmark = pytest.mark.slow

SPEED = Objective()


@cache
def made(name: str) -> tuple[Synthetic, Table]:
    found = synthetic(name)
    return found, found.table


@cache
def speeds(name: str) -> dict[Plan, float]:
    """The throughput of each plan that fits, over the best one's."""
    table = made(name)[1]
    scores = TableBench(table).throughputs(SPEED)
    best = max(scores.values())
    return {plan: scores[plan.key] / best for plan in table.plans if plan.key in scores}


def best(name: str, **values: object) -> tuple[Plan, float]:
    """The fastest plan with these values, and its throughput over that of the fastest of all."""
    fitting = {p: s for p, s in speeds(name).items() if all(p.values[k] == v for k, v in values.items())}
    return max(fitting.items(), key=lambda pair: pair[1])


def entries(name: str) -> dict[Plan, Entry]:
    return {entry.plan: entry for entry in made(name)[1].entries}


def own(name: str, size: int | None = None, **values: object) -> Plan:
    """The user's plan with changes."""
    table = made(name)[1]
    baseline = table.space.baseline
    at = baseline.micro_batch_size if size is None else size
    return SearchSpace(table.space).at(baseline.combination.replace(**values), at)  # type: ignore[arg-type]  # names


@pytest.mark.parametrize("name", TRAPS)
def test_every_table_is_complete_explained_and_has_a_limit_that_matters(name: str) -> None:
    found, table = made(name)
    assert table.missing() == ()
    assert found.about
    assert "\n" not in found.about
    assert 6 <= len(table.space.sizes) <= 14
    measured = [entry for entry in table.entries if entry.outcome.measured]
    assert 0.3 < len(measured) / len(table.entries) < 0.95
    assert all(len(entry.blocks) == 3 for entry in measured)
    assert all(entry.outcome.duration_s > 0 for entry in table.entries)


@pytest.mark.parametrize("name", TRAPS)
def test_what_a_replay_averages_to_is_the_truth(name: str) -> None:
    found, table = made(name)
    scores = TableBench(table).throughputs(SPEED)
    for entry in [e for e in table.entries if e.outcome.measured][::40]:
        assert scores[entry.plan.key] == pytest.approx(found.bench.samples_per_s(entry.plan))
    assert max(scores.values()) == pytest.approx(found.bench.samples_per_s(found.bench.best()))


def test_a_seed_decides_everything() -> None:
    assert synthetic("few_divisors").full == made("few_divisors")[0].full
    assert synthetic("few_divisors", seed=1).full != made("few_divisors")[0].full


def test_plain() -> None:
    plan, _ = best("plain")
    assert plan.changes_from(own("plain")).keys() == {"micro_batch_size", "precision", "optimizer_implementation"}
    assert speeds("plain")[own("plain")] < 0.5


def test_largest_is_slow() -> None:
    plan, _ = best("largest_is_slow")
    sizes = [p.micro_batch_size for p in speeds("largest_is_slow") if p.combination == plan.combination]
    assert plan.micro_batch_size <= max(sizes) / 2
    assert best("largest_is_slow", micro_batch_size=max(sizes))[1] < 0.9


def test_cliff() -> None:
    found, table = made("cliff")
    limit = table.budget.memory_bytes
    near = {p: s for p, s in speeds("cliff").items() if found.bench.peak_bytes(p) > 0.88 * limit}
    assert len(near) > 30
    assert max(near.values()) < 0.9
    for plan in list(near)[:5]:
        smaller = plan.replace(micro_batch_size=max(s for s in table.space.sizes if s < plan.micro_batch_size))
        assert speeds("cliff").get(smaller, 1) > near[plan]


def test_hole() -> None:
    status = {s: entries("hole")[own("hole", s)].outcome.status for s in made("hole")[1].space.sizes}
    assert status[8] == status[32] == Status.MEASURED
    assert status[16] == status[24] == Status.OUT_OF_MEMORY
    assert best("hole")[0].micro_batch_size > 24
    assert max(s for p, s in speeds("hole").items() if p.micro_batch_size < 16) < 0.8


def test_odd_sizes() -> None:
    plan, _ = best("odd_sizes")
    assert plan.micro_batch_size % 32 == 0
    assert speeds("odd_sizes")[plan.replace(micro_batch_size=40)] < 0.92


def test_ties() -> None:
    close = [plan for plan, speed in speeds("ties").items() if speed > 0.99]
    assert len(close) > 40
    assert {plan.values["precision"] for plan in close} == {"fp32", "tf32", "bf16", "fp16"}
    assert speeds("ties")[own("ties", 16)] > 0.98
    peaks = [made("ties")[0].bench.peak_bytes(plan) for plan in close]
    assert max(peaks) > 1.5 * min(peaks)


def test_only_together() -> None:
    at = {
        (precision, layout): speeds("only_together")[own("only_together", precision=precision, memory_format=layout)]
        for precision in ("fp32", "bf16")
        for layout in ("default", "channels_last")
    }
    assert at["fp32", "channels_last"] < 0.95 * at["fp32", "default"]
    assert at["bf16", "default"] < 1.05 * at["fp32", "default"]
    assert at["bf16", "channels_last"] > 1.3 * at["fp32", "default"]
    plan, _ = best("only_together")
    assert plan.values["precision"] in HALF
    assert plan.values["memory_format"] == "channels_last"


def test_needs_checkpointing() -> None:
    assert best("needs_checkpointing")[0].values["checkpointed_blocks"] != 0
    assert best("needs_checkpointing", checkpointed_blocks=0)[1] < 0.6
    same = [speeds("needs_checkpointing")[own("needs_checkpointing", checkpointed_blocks=n)] for n in (0, 12)]
    assert same[1] < 0.85 * same[0]


def test_heavy_noise() -> None:
    def spread(name: str) -> float:
        measured = [entry for entry in made(name)[1].entries if entry.outcome.measurement is not None]
        probes = [entry.outcome.measurement.step_times_s for entry in measured if entry.outcome.measurement]
        return median(pstdev(times) / median(times) for times in probes)

    assert spread("heavy_noise") > 0.08
    assert spread("heavy_noise") > 5 * spread("drifting") > 0


def test_drifting() -> None:
    def wander(name: str) -> float:
        blocks = [[median(b.step_times_s) for b in e.blocks] for e in made(name)[1].entries if e.blocks]
        return median(max(levels) / min(levels) - 1 for levels in blocks)

    assert wander("drifting") > 0.06 > 2 * wander("plain")


@pytest.mark.parametrize("name", ["heavy_noise", "drifting"])
def test_a_host_says_over_budget_where_a_device_is_out_of_memory(name: str) -> None:
    failed = {entry.outcome.status for entry in entries(name).values() if not entry.outcome.measured}
    assert failed == {Status.OVER_BUDGET}


def test_static_memory() -> None:
    found, table = made("static_memory")
    assert found.bench.static_mib * 2**20 > 0.88 * table.budget.memory_bytes
    assert not any(plan.values["optimizer_implementation"] == "foreach" for plan in speeds("static_memory"))


def test_huge_win() -> None:
    assert best("huge_win", precision="bf16")[1] == 1
    assert all(best("huge_win", precision=other)[1] < 0.5 for other in ("fp32", "tf32", "fp16"))


def test_few_divisors() -> None:
    table = made("few_divisors")[1]
    assert table.space.sizes == (1, 2, 3, 6, 31, 62, 93, 186)
    assert {plan.global_batch_size for plan in entries("few_divisors")} == {186}
    assert best("few_divisors")[0].micro_batch_size == 31
    assert not entries("few_divisors")[own("few_divisors", 31)].outcome.measured


def test_accumulation() -> None:
    assert {plan.global_batch_size for plan in entries("accumulation")} == {256}
    plan, _ = best("accumulation")
    assert plan.micro_batch_size >= 32
    assert plan.accumulation_steps > 1


def test_own_is_best() -> None:
    assert speeds("own_is_best")[own("own_is_best")] > 0.98


def test_own_is_too_large() -> None:
    assert not entries("own_is_too_large")[own("own_is_too_large")].outcome.measured
    assert entries("own_is_too_large")[own("own_is_too_large", 16)].outcome.measured


def test_faulty() -> None:
    found = entries("faulty")
    half = [e for plan, e in found.items() if plan.values["precision"] == "fp16"]
    assert {entry.outcome.status for entry in half} == {Status.NUMERIC}
    assert found[own("faulty", 32, precision="bf16")].outcome.status is Status.LAUNCH_LIMIT
    assert best("faulty")[0].values["precision"] == "bf16"
    assert best("faulty")[0].micro_batch_size > 32


def test_late_win() -> None:
    small, large = (speeds("late_win")[own("late_win", s, precision="bf16")] for s in (2, 32))
    assert small < 0.8 * speeds("late_win")[own("late_win", 2)]
    assert large > 1.2 * speeds("late_win")[own("late_win", 32)]


def test_early_win() -> None:
    gains = [
        speeds("early_win")[own("early_win", size, optimizer_implementation="fused")]
        / speeds("early_win")[own("early_win", size)]
        for size in (2, 32)
    ]
    assert gains[0] > 1.5
    assert gains[1] < 1.25
