"""The benchmark of trainers: the verdict on made-up figures, and a very short real run of each trainer."""

import math
import sys
from pathlib import Path

import pytest

from scripts.bench.trainers import __main__ as bench
from scripts.bench.trainers import judging
from scripts.bench.trainers.arms import StepEnds
from scripts.bench.trainers.judging import BlockTimes, TrainerSpeed
from tests.integrations.lightning_modules import FILTERS

PAIRS = 12


def speed(
    slower: float, explained: float | None = None, *, machine: float = 1.0, noise: float = 0.0, loading: float = 0.0
) -> TrainerSpeed:
    """Returns the ratios of a trainer whose steps take `slower` times as long as those of 1 s that were promised.

    Args:
        slower: how much longer the steps of the trainer take.
        explained: the same without the overhead that the integration reports; None if it reports none.
        machine: how much longer everything takes than when the plan was proven, growing by 1 % with each block.
        noise: how much longer every second block of the trainer takes, and how much shorter the others do.
        loading: seconds for the batches, which the promise does not have.
    """
    trainer, prepared = [], []
    for number in range(PAIRS):
        now = machine * 1.01**number
        disturbed = now * (1 + noise if number % 2 else 1 / (1 + noise))
        work_s = None if explained is None else disturbed * explained
        trainer.append(BlockTimes(disturbed * slower, now * slower, work_s))
        prepared.append(BlockTimes(now * (1 + loading), now * (1 + loading), now))
    return judging.found(trainer, prepared, promised_s=1.0)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (speed(1.04), "within 5 %"),
        (speed(0.96), "within 5 %"),
        (speed(1.04, machine=1.5), "within 5 %"),
        (speed(1.04, noise=0.05), "MISSED"),  # probably within, but not shown
        (speed(1.06), "MISSED"),
        (speed(0.94), "MISSED"),  # faster than the plan promised
        (speed(1.5, explained=1.04), "explained"),
        (speed(1.5, explained=1.06), "MISSED"),
        (speed(1.5, explained=0.94), "MISSED"),  # more overhead is reported than there is
        (speed(1.5, explained=1.0, noise=0.2), "MISSED"),
        (speed(1.06, loading=0.06), "MISSED"),  # the promise is without the batches
    ],
)
def test_the_verdict_is_that_of_the_whole_interval(found: TrainerSpeed, verdict: str) -> None:
    assert found.verdict == verdict
    assert found.ok == (verdict != "MISSED")
    assert found.figures()["ok"] == found.ok


def test_ratios_are_of_throughputs_and_the_machine_cancels_in_pairs() -> None:
    found = speed(1.25, explained=1.0, machine=2.0, loading=0.25)
    assert found.promise_now.value == pytest.approx(0.8)
    assert found.prepared.value == found.prepared_cpu.value == pytest.approx(1.0)
    assert found.drift.value == pytest.approx(0.5 / 1.01 ** ((PAIRS - 1) / 2))
    assert found.promise.value == pytest.approx(0.8 * found.drift.value)
    assert found.promise_now.high - found.promise_now.low < 1e-4 < found.promise.high - found.promise.low
    assert found.explained is not None
    assert found.explained.value == pytest.approx(1.0)
    assert "without its reported overhead: 1.000 (1.000 to 1.000)" in found.lines()[-1]
    assert "without its reported overhead: none is reported" in speed(1.0).lines()[-1]


def test_the_work_of_a_trainer_is_what_its_overhead_leaves() -> None:
    ends = StepEnds([(0.0, 0.0), (50.0, 50.0), (51.0, 50.5), (52.0, 51.0)])
    assert ends.block(2, overhead_s=0.25) == BlockTimes(1.0, 0.5, 0.75)
    assert ends.block(2, overhead_s=None) == BlockTimes(1.0, 0.5, None)


def test_a_block_has_the_steps_that_the_integrations_need() -> None:
    assert bench.steps_per_block(1.0, 0.02) == 50
    assert bench.steps_per_block(1.0, 10.0) == bench.LEAST_STEPS
    assert bench.steps_per_block(1.0, 1e-6) == bench.MOST_STEPS


@pytest.mark.parametrize(("ok", "code"), [((True, True), 0), ((True, False), 1)])
def test_one_case_that_missed_fails(ok: tuple[bool, ...], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter(ok)

    def measured(*_: object) -> dict[str, object]:
        passed = next(results)
        verdict = "within 5 %" if passed else "MISSED"
        return {"case": "any", "promise_now": {"value": 1.0}, "verdict": verdict, "ok": passed}

    monkeypatch.setattr(bench, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["trainers", *bench.NAMES[: len(ok)]])
    with pytest.raises(SystemExit) as exited:
        bench.main()
    assert exited.value.code == code


@pytest.mark.slow
@pytest.mark.filterwarnings(*FILTERS)
@pytest.mark.parametrize("name", ["huggingface-small", "lightning-small"])
def test_both_trainers_run_beside_the_prepared_step(name: str, tmp_path: Path) -> None:
    found = bench.measure(bench.case(name, str(tmp_path)), tuning_s=4.0, pairs=2, block_s=0.0)
    assert found["steps"] == bench.LEAST_STEPS
    assert [len(blocks) for blocks in found["blocks"].values()] == [2, 2]
    for blocks in found["blocks"].values():
        assert all(0 < block["work_s"] < block["wall_s"] for block in blocks)
    assert all(math.isfinite(found[name]["value"]) for name in ("prepared", "promise", "drift", "explained"))
