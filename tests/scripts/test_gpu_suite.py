"""The GPU suite: what it refuses, what it does not run again, and that a broken stage does not stop the others."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts" / "bench")]

import record_table  # noqa: E402  # the scripts are no package of the distribution
from gpu import prediction, steps, suite  # noqa: E402
from gpu import stage as stage_tools  # noqa: E402
from gpu import tests as stage_of_tests  # noqa: E402

from autofit.core.budget import Clock  # noqa: E402
from autofit.core.errors import UsageError  # noqa: E402
from autofit.core.estimate import Estimate  # noqa: E402
from autofit.core.outcome import Outcome, Status  # noqa: E402
from autofit.core.plan import Plan  # noqa: E402
from autofit.core.table import Table  # noqa: E402
from autofit.core.trial import Trial  # noqa: E402
from autofit.estimators.base import Estimator  # noqa: E402
from tests.fakes import briefing_of, small_bench  # noqa: E402

HERE = {"device": "Test", "type": "cuda", "torch": "2.11.0", "phantom": False}
STAGE = """
import json, sys, time
from pathlib import Path
arguments = dict(zip(sys.argv[2::2], sys.argv[3::2]))
out, figures = Path(arguments["--out"]), Path(arguments["--json"])
with (out / "calls").open("a") as calls:
    calls.write(sys.argv[1] + "\\n")
print("a line of", sys.argv[1])
"""
WRITE = 'figures.write_text(json.dumps({"table": {"columns": ["what"], "rows": [["a|b"]]}}))\n'


@pytest.fixture
def stages(tmp_path: Path) -> dict[str, suite.Stage]:
    """Fake stages that note their calls; each ends in another way."""
    ends = {
        "good": WRITE,
        "slow": WRITE + "sys.exit(1)\n",
        "partial": WRITE + "sys.exit(75)\n",
        "crash": "raise ZeroDivisionError('by zero')\n",
        "usage": "sys.exit('no such thing')\n",
        "endless": "time.sleep(60)\n",
        "silent": "",
        "also-good": WRITE,
    }
    found = {}
    for name, end in ends.items():
        script = tmp_path / f"{name}.py"
        script.write_text(STAGE + end)
        found[name] = suite.Stage(name, f"the {name} one", (str(script), name))
    return found


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for results, on a machine that is taken to have a device."""
    monkeypatch.setattr(suite, "machine", lambda device: dict(HERE))
    monkeypatch.setattr(suite, "missing", list)
    return tmp_path / "out"


def run(out: Path, stages: list[suite.Stage], *arguments: str) -> int:
    return suite.main(["--out", str(out), *arguments], stages)


def state(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / suite.STATE).read_text())["results"]
    return found


def calls(out: Path) -> list[str]:
    return (out / "calls").read_text().split()


def test_each_stage_gets_the_folder_the_file_and_less_time_than_its_limit(
    out: Path, stages: dict[str, suite.Stage], tmp_path: Path
) -> None:
    script = tmp_path / "arguments.py"
    script.write_text(
        "import json, sys\nfrom pathlib import Path\nPath(sys.argv[4]).write_text(json.dumps({'given': sys.argv}))\n"
    )
    assert run(out, [suite.Stage("see", "", (str(script),))], "--limit-s", "100", "--device", "cuda:1") == 0
    given = json.loads((out / "see.json").read_text())["given"][1:]
    options = dict(zip(given[::2], given[1::2], strict=True))
    assert (options["--out"], options["--json"]) == (str(out), str(out / "see.json"))
    assert 80 < float(options["--limit-s"]) < 100
    assert options["--device"] == "cuda:1"


def test_a_finished_stage_is_not_run_again(out: Path, stages: dict[str, suite.Stage]) -> None:
    both = [stages["good"], stages["slow"]]
    assert run(out, both) == 1
    assert run(out, both) == 1
    assert calls(out) == ["good", "slow"]
    assert {name: result["status"] for name, result in state(out).items()} == {"good": "ok", "slow": "missed"}
    assert (out / "good.json").exists()


def test_a_stage_that_was_cut_short_or_broke_is_run_again(out: Path, stages: dict[str, suite.Stage]) -> None:
    some = [stages["partial"], stages["crash"]]
    run(out, some)
    assert run(out, some) == 1
    assert calls(out) == ["partial", "crash"] * 2


def test_a_broken_stage_is_reported_and_the_others_go_on(
    out: Path, stages: dict[str, suite.Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("crash", "usage", "silent", "good")
    assert run(out, [stages[name] for name in names]) == 1
    found = state(out)
    assert [found[name]["status"] for name in names] == ["broken", "broken", "broken", "ok"]
    assert found["crash"]["line"] == "ZeroDivisionError: by zero"
    assert "no such thing" in capsys.readouterr().out
    assert "by zero" in (out / "crash.log").read_text()
    page = (out / "SUMMARY.md").read_text()
    assert "| crash | broken |" in page
    assert "| a\\|b |" in page


def test_figures_of_an_earlier_call_do_not_make_a_broken_stage_whole(out: Path, stages: dict[str, suite.Stage]) -> None:
    out.mkdir()
    (out / "usage.json").write_text("{}")
    run(out, [stages["usage"]])
    assert state(out)["usage"]["status"] == "broken"
    assert not (out / "usage.json").exists()


def test_a_stage_that_does_not_end_is_ended(out: Path, stages: dict[str, suite.Stage]) -> None:
    began = time.monotonic()
    assert run(out, [stages["endless"], stages["good"]], "--limit-s", "3") == 1
    assert time.monotonic() - began < 30
    assert state(out)["endless"]["status"] == "timed out"
    assert state(out)["good"]["status"] == "ok"


def test_an_interrupt_ends_the_stage_and_leaves_the_others_for_the_next_call(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, [stages["good"]])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", interrupt)
        assert run(out, [stages["good"], stages["endless"], stages["also-good"]]) == 130
    assert "interrupted; the same command goes on" in capsys.readouterr().err
    assert run(out, [stages["good"], stages["also-good"]]) == 0
    assert calls(out).count("good") == 1


def test_stages_are_chosen_by_name_or_by_the_first_part_of_it(out: Path, stages: dict[str, suite.Stage]) -> None:
    every = list(stages.values())
    assert run(out, every, "--stages", "good,also") == 0
    assert calls(out) == ["good", "also-good"]


def test_an_unknown_stage_is_refused_with_the_names_there_are(
    out: Path, stages: dict[str, suite.Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(out, [stages["good"]], "--stages", "good,bad")
    assert ended.value.code == 2
    assert "no stage 'bad'; expected some of good" in capsys.readouterr().err
    assert not out.exists()


def test_a_limit_of_no_time_is_refused(out: Path, stages: dict[str, suite.Stage]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(out, [stages["good"]], "--limit-s", "0")
    assert ended.value.code == 2


def test_missing_packages_are_one_line(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(suite, "NEEDED", {"json": "json", "no_such_module": "no-such-package"})
    assert run(out, [stages["good"]]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "not installed" in lines[0]
    assert lines[0].count("no-such-package") == 1
    assert "json" not in lines[0].replace(sys.executable, "")


def test_results_of_another_machine_are_not_mixed(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, [stages["good"]])
    monkeypatch.setattr(suite, "machine", lambda device: {**HERE, "device": "Other"})
    assert run(out, [stages["slow"]]) == 2
    assert "another machine (device Other, there Test)" in capsys.readouterr().err
    assert calls(out) == ["good"]


def test_a_dry_run_says_so_on_the_page(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(out, [stages["good"]])
    assert "dry run" not in (out / "SUMMARY.md").read_text()
    monkeypatch.setattr(suite, "machine", lambda device: {**HERE, "type": "cpu"})
    run(out / "cpu", [stages["good"]], "--device", "cpu")
    assert "A dry run on a CPU" in (out / "cpu" / "SUMMARY.md").read_text()
    monkeypatch.setattr(suite, "machine", lambda device: {**HERE, "phantom": True})
    run(out / "phantom", [stages["good"]])
    assert "phantom GPU: times and values mean nothing" in (out / "phantom" / "SUMMARY.md").read_text()


def test_a_missing_device_is_one_clear_line_from_the_command(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "gpu_suite"), "--out", str(tmp_path / "out"), "--device", "cuda:77"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert "no device 'cuda:77' here" in lines[0]
    assert "--device cpu" in lines[0]
    assert not (tmp_path / "out").exists()


def test_help_names_what_must_be_installed_and_every_stage() -> None:
    command = [str(ROOT / "scripts" / "gpu_suite"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    for name in ("torch", "optuna", "pydantic", "tqdm", "PyYAML", "pytest", "lightning", "accelerate"):
        assert name in done.stdout
    for stage in suite.STAGES:
        assert f"  {stage.name} " in done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}


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
    """Predicts a fixed number of bytes per sample, with a lower bound below it."""

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
    skipped = Outcome(status=Status.SKIPPED, reason="predicted not to fit")
    return recording.table, [
        Trial(number=0, plan=first.plan, outcome=first.outcome),
        Trial(number=1, plan=second.plan, outcome=skipped),
    ]


def test_an_estimator_is_asked_about_the_plans_that_did_not_run(tmp_path: Path) -> None:
    table, trials = recorded(tmp_path)
    estimator = Says(1, 0.5)
    score = prediction.score(estimator, trials, table)
    assert estimator.told == 2
    assert (score["told"], score["rest"]) == (1, len(table.entries) - 1)
    assert score["no_opinion"] == 0
    assert score["fits_but_refused"] == 0
    assert score["above_upper_bound"] > 0  # one byte a sample is far too little
    assert score["median_error_ratio"] < -0.9


def test_a_lower_bound_that_refuses_what_fits_is_counted(tmp_path: Path) -> None:
    table, trials = recorded(tmp_path)
    score = prediction.score(Says(10**12, 1.0), trials, table)
    fits = sum(entry.outcome.measured for entry in table.entries) - trials[0].outcome.measured
    assert score["fits_but_refused"] == fits > 0
    assert score["below_lower_bound"] >= fits
    assert score["does_not_fit_and_refused"] == score["does_not_fit"]


def test_prediction_without_grids_says_what_to_run_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Run a stage grid first"):
        prediction.load(tmp_path)


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
