"""The stages of the GPU suite: what they compare, keep, and say with their exit codes."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autofit.core.account import Account
from autofit.core.answer import Answer, Ratio
from autofit.core.budget import Clock
from autofit.core.errors import Untraceable, UsageError
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.outcome import COMPILING, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Trial
from autofit.estimators.base import Estimator
from scripts.bench.gpu import estimates, gain, soak, steps, strategies, traced
from scripts.bench.gpu import stage as stage_tools
from scripts.bench.gpu import tests as stage_of_tests
from scripts.bench.search import record_table
from scripts.bench.search.replay.table import Table
from tests.fakes import briefing_of, small_bench
from tests.memory.traces import Script

pytestmark = pytest.mark.slow


def case(name: str, allocated: int, reserved: int, error: str = "") -> dict[str, Any]:
    return {"case": name, "model": "m", "size": 1, "error": error, "allocated_bytes": [1, allocated],
            "reserved_bytes": [reserved, reserved], "static_bytes": [1, 1]}  # fmt: skip


def test_what_a_phantom_misses_is_the_difference_of_the_peaks_of_cases_that_ran_on_both() -> None:
    real = [case("a", 110, 210), case("b", 50, 60), case("only here", 1, 1), case("failed", 1, 1, "out of memory")]
    phantom = [case("a", 100, 200), case("b", 50, 70), case("failed", 1, 1)]
    compared = steps.compare(real, phantom)
    assert [row["case"] for row in compared] == ["a", "b"]
    assert compared[0]["allocated_bytes"] == {"real": 110, "phantom": 100, "missed": 10}
    assert compared[1]["reserved_bytes"]["missed"] == -10
    assert "no phantom record" in steps.summarize([], Path("steps-x.json"))
    assert "misses -10 B to 10 B" in steps.summarize(compared, Path("steps-x.json"))


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
def test_the_records_kept_of_the_phantom_hold_every_case_of_the_list(capability: str) -> None:
    record = json.loads((steps.RECORDS / f"steps-torch-2.11.0-sm-{capability}-full.json").read_text())
    assert record["where"]["phantom"] is True
    assert record["capability"] == capability
    assert [one["case"] for one in record["cases"]] == [one.name for one in steps.cases("full")]
    for one in record["cases"]:
        assert not one["error"]
        assert 0 < max(one["static_bytes"]) <= max(one["allocated_bytes"]) <= max(one["reserved_bytes"])


class Says(Estimator):
    """Estimates a fixed number of bytes per sample, with a lower bound below it."""

    def __init__(self, per_sample: int, lower: float) -> None:
        self.per_sample, self.lower, self.told = per_sample, lower, 0

    def tell(self, trial: Trial) -> None:
        self.told += 1

    def estimate(self, plan: Plan) -> Estimate:
        value = self.per_sample * plan.micro_batch_size
        return Estimate(value_bytes=value, lower_bytes=round(self.lower * value), upper_bytes=2 * value)


def recorded(tmp_path: Path) -> tuple[Table, list[Trial]]:
    """A table of a fake device, and a search of one trial and one plan that was screened out."""
    bench = small_bench()
    briefing = briefing_of(bench)
    recording = record_table.open_recording(tmp_path / "t.json", "t", briefing, briefing.space, rounds=0, seed=0)
    recording.run(bench.evaluate, Clock(bench.time), 1e9)
    first, second = recording.table.entries[:2]
    skipped = Outcome(status=Status.SKIPPED, reason="estimated not to fit")
    return recording.table, [
        Trial(number=0, plan=first.plan, outcome=first.outcome),
        Trial(number=1, plan=second.plan, outcome=skipped),
    ]


def test_an_estimator_is_asked_about_the_plans_that_did_not_run(tmp_path: Path) -> None:
    table, trials = recorded(tmp_path)
    estimator = Says(1, 0.5)
    score = estimates.score(estimator, trials, table)
    assert estimator.told == 2
    assert (score["known"], score["rest"]) == (1, len(table.entries) - 1)
    assert score["no_opinion"] == 0
    assert score["fits_but_refused"] == 0
    assert score["above_upper_bound"] > 0  # one byte a sample is far too little
    assert score["median_error_ratio"] < -0.9


def test_a_lower_bound_that_refuses_what_fits_is_counted(tmp_path: Path) -> None:
    table, trials = recorded(tmp_path)
    score = estimates.score(Says(10**12, 1.0), trials, table)
    fits = sum(entry.outcome.measured for entry in table.entries) - trials[0].outcome.measured
    assert score["fits_but_refused"] == fits > 0
    assert score["below_lower_bound"] >= fits
    assert score["does_not_fit_and_refused"] == score["does_not_fit"]


def test_estimates_without_grids_says_what_to_run_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Run a grid stage first"):
        estimates.load(tmp_path)


HOST = Account(allocator="host")


def tracer(table: Table, factor: float, missed: int) -> Any:
    """A tracer of which every trace has `factor` times the peak that the table has, less `missed` bytes."""
    peaks = {entry.plan: traced.peak(entry) for entry in table.entries if entry.outcome.measured}

    def trace(plan: Plan) -> Any:
        script = Script(plan.micro_batch_size)
        script.mark("step 1 forward")
        script.moment(round(factor * peaks[plan]) - missed)
        return script.trace()

    return trace


@pytest.mark.parametrize(
    ("factor", "missed", "before", "after", "ok"),
    [(1.0, 0, 0.0, 0.0, True), (1.01, 0, 0.01, 0.01, True), (0.96, 0, -0.04, -0.04, False), (1.0, 10, None, 0.0, True)],
)
def test_estimates_are_compared_before_and_after_one_probe(
    tmp_path: Path, factor: float, missed: int, before: float | None, after: float, ok: bool
) -> None:
    table, trials = recorded(tmp_path)
    found = traced.score(tracer(table, factor, missed), HOST, trials, table, 5)
    assert found["asked"] == found["before"]["estimated"] == found["after"]["estimated"] == 5
    if before is not None:
        assert found["before"]["worst_ratio"] == pytest.approx(before, abs=0.002)
    assert found["after"]["median_ratio"] <= abs(after) + 0.002
    assert found["ok"] == ok


def test_the_plans_compared_reach_from_the_smallest_peak_to_the_largest(tmp_path: Path) -> None:
    entries = [entry for entry in recorded(tmp_path)[0].entries if entry.outcome.measured]
    peaks = sorted(map(traced.peak, entries))
    found = [traced.peak(entry) for entry in traced.spread(entries, 4)]
    assert found == sorted(found)
    assert (found[0], found[-1], len(found)) == (peaks[0], peaks[-1], 4)
    assert [*map(traced.peak, traced.spread(entries, 1000))] == peaks


def test_what_cannot_be_traced_is_missed(tmp_path: Path) -> None:
    def refuse(plan: Plan) -> Any:
        raise Untraceable("a step that depends on data", "here")

    table, trials = recorded(tmp_path)
    found = traced.score(refuse, HOST, trials, table, 5)
    assert (found["before"]["estimated"], found["ok"]) == (0, False)
    assert "depends on data" in found["refused"]


def test_test_results_are_read_from_what_pytest_said() -> None:
    text = (
        "tests/a.py::test_one PASSED [ 25%]\ntests/a.py::test_two[x y] FAILED [ 50%]\ntests/a.py::test_three SKIPPED "
        "(no GPU) [ 75%]\ntests/a.py::test_four PASSED [ 80%]\ntests/a.py::test_four ERROR [ 80%]\n"
        "tests/a.py::test_broken_off \n=== short summary ===\nFAILED tests/a.py::test_two[x y] - assert 1 == 2\n"
    )
    assert stage_of_tests.results(text) == {
        "tests/a.py::test_one": "PASSED",
        "tests/a.py::test_two[x y]": "FAILED",
        "tests/a.py::test_three": "SKIPPED",
        "tests/a.py::test_four": "ERROR",
    }


FILES = {"short": "import time\ndef test_one(): pass\ndef test_two(): assert False\n",
         "long": "import time\ndef test_one(): pass\ndef test_two(): time.sleep(600)\n"}  # fmt: skip


@pytest.mark.parametrize(("name", "limit_s", "code"), [("short", 500, 1), ("long", 3, 75)])
def test_tests_cut_off_by_the_limit_are_unfinished_and_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit_s: int, code: int
) -> None:
    (tmp_path / "test_it.py").write_text(FILES[name])
    command = ["tests", "shared", "--folder", str(tmp_path), "--out", str(tmp_path), "--limit-s", str(limit_s)]
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        stage_of_tests.main()
    assert ended.value.code == code


@pytest.mark.parametrize("name", ["grid-gpt.json", "grid-gpt.part.json"])
def test_the_soak_takes_the_plan_of_a_grid_that_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tuned = {"answer": {"of": name}}
    (tmp_path / name).write_text(json.dumps({"tuned": tuned} if "part" in name else tuned))
    monkeypatch.setattr(Answer, "model_validate", lambda found: found)
    monkeypatch.setattr(soak, "tune", lambda *_: pytest.fail("tuned again"))
    monkeypatch.setattr(soak, "RemoteBench", lambda *_: pytest.fail("opened a bench"))
    taken: object = soak.proven(argparse.Namespace(out=tmp_path, limit_s=1, device="cpu", scale="tiny"))
    assert taken == {"of": name}


def test_a_part_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "x.part.json"
    calls: list[str] = []

    def make() -> str:
        calls.append("made")
        return "it"

    assert stage_tools.Parts(path).get("a", make) == "it"
    assert stage_tools.Parts(path).get("a", make) == "it"
    assert calls == ["made"]
    parts = stage_tools.Parts(path)
    assert "a" in parts
    assert "b" not in parts
    parts.clear()
    assert "a" not in stage_tools.Parts(path)


def test_plans_by_hand_are_compared_in_blocks_or_said_not_to_have_run() -> None:
    bench = small_bench(noise=0.001, drift=0.001)
    found = bench.space.baseline.replace(precision="bf16")
    hand = {"as found": found, "plain": bench.space.baseline, "broken": bench.space.baseline.replace(optimizer="fused")}
    failure = Outcome(status=Status.NOT_COMPILED, reason="no compiler")
    bench.faults[hand["broken"].key] = lambda _: failure
    compared = gain.compare(bench.evaluate, found, hand, 4, Clock(), 60)
    assert compared["as found"] == "the recommended plan"
    assert compared["broken"] == "not compiled: no compiler"
    true = bench.samples_per_s(found) / bench.samples_per_s(bench.space.baseline)
    plain = compared["plain"]
    assert isinstance(plain, Ratio)
    assert plain.low < true < plain.high


def test_a_plan_by_hand_is_left_out_when_the_time_is_spent() -> None:
    bench = small_bench()
    found = bench.space.baseline.replace(precision="bf16")
    compared = gain.compare(bench.evaluate, found, {"plain": bench.space.baseline}, 4, Clock(), -1)
    assert str(compared["plain"]).startswith("not run")
    assert bench.runs == []


def test_only_plans_that_the_space_has_are_made_by_hand() -> None:
    space = small_bench().space.facts
    assert {name: plan.values["precision"] for name, plan in gain.by_hand(space).items()} == {"bf16": "bf16"}


def trained(change: dict[str, Any], losses: list[float] | None, status: str = "measured") -> dict[str, Any]:
    values = {"precision": "fp32", "checkpointed_blocks": 0, **change}
    return {"plan": values, "status": status, "reason": "its reason", "phase": None, "losses": losses}


def test_a_strategy_is_objected_to_if_it_fails_or_trains_otherwise() -> None:
    baseline = Plan(values={"precision": "fp32", "checkpointed_blocks": 0})
    first = trained({}, [4.0, 3.0, 2.0])
    fine = [
        trained({"checkpointed_blocks": 1}, [4.0, 3.0, 2.001]),
        trained({"precision": "bf16"}, [4.0, 3.05, 2.05]),
        trained({"precision": "fp16"}, [4.0, 4.0, 3.0]),  # the update after the first loss was skipped
        {**trained({"compile": "default"}, None, "not compiled"), "phase": COMPILING},
    ]
    assert strategies.objections([first, *fine], baseline) == []
    wrong = [
        trained({"checkpointed_blocks": 1}, [4.0, 3.0, 2.01]),
        trained({"precision": "bf16"}, [4.0, 3.0, 2.3]),
        trained({"checkpointed_blocks": 2}, [4.0, 3.0, float("nan")]),
        trained({"checkpointed_blocks": 3}, None, "crashed"),
    ]
    said = strategies.objections([first, *wrong], baseline)
    assert said == [
        "checkpointed_blocks=1: its losses differ by 0.005 of the user's plan, expected at most 0.001",
        "precision=bf16: its losses differ by 0.15 of the user's plan, expected at most 0.05",
        "checkpointed_blocks=2: its losses differ by nan of the user's plan, expected at most 0.001",
        "checkpointed_blocks=3: crashed: its reason",
    ]
    shown = strategies.table([first, *fine, *wrong], baseline)["rows"]
    assert [row[0] for row in shown][:2] == ["the user's plan", "checkpointed_blocks=1"]


def test_each_value_of_a_space_is_one_change_of_the_users_plan_and_compiled_plans_come_last() -> None:
    space = small_bench().space.facts
    compiled = Knob(name="compile", values=("off", "default", "blocks"), default="off")
    baseline = space.baseline.replace(compile="off")
    wide = space.model_copy(update={"knobs": (*space.knobs, compiled), "baseline": baseline})
    found = strategies.changes(wide)
    assert found[0] == baseline
    assert {str(plan.values["compile"]) for plan in found[-3:]} == {"default", "blocks"}
    single = [strategies.difference(dict(plan.values), baseline) for plan in found]
    assert "precision=bf16 compile=default" in single
    assert len(single) == len(set(single))


@pytest.mark.parametrize("name", ["language", "texts"])
def test_every_strategy_of_a_model_runs_and_trains_alike_on_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = strategies.changes

    def uncompiled(space: SpaceFacts) -> list[Plan]:
        return [plan for plan in every(space) if plan.values.get("compile", "off") == "off"]

    monkeypatch.setattr(strategies, "changes", uncompiled)
    given = argparse.Namespace(out=tmp_path, device="cpu", scale="tiny", limit_s=500.0)
    summary, figures, met = strategies.run(name, given, Clock())
    assert met, summary
    assert len(figures["rows"]) >= 6
    assert any(row["plan"].get("packing") for row in figures["rows"]) is (name == "texts")
    assert all(row["losses"][-1] < row["losses"][0] for row in figures["rows"])
    assert not list(tmp_path.iterdir())
