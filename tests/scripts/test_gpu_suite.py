"""The GPU suite: what it refuses, what it does not run again, and that a broken stage does not stop the others."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.bench import files
from scripts.bench.gpu import stage as stage_tools
from scripts.bench.gpu import suite

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
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
        "endless": "time.sleep(600)\n",
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
    monkeypatch.setattr(suite, "machine", lambda *_: dict(HERE))
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
    assert run(out, [replace(stages["endless"], limit_s=1), stages["good"]]) == 1
    assert time.monotonic() - began < 300
    assert state(out)["endless"]["status"] == "timed out"
    assert state(out)["good"]["status"] == "ok"


def test_tests_that_missed_are_run_again_after_the_others(out: Path, stages: dict[str, suite.Stage]) -> None:
    tests = replace(stages["slow"], again=True)
    run(out, [tests])
    assert run(out, [tests, stages["good"]]) == 1
    assert calls(out) == ["slow", "good", "slow"]
    assert [stage.name for stage in suite.STAGES if stage.again] == ["tests-real", "tests-shared"]


def test_no_stage_is_started_for_less_than_a_minute_of_the_total(
    out: Path, stages: dict[str, suite.Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(out, [stages["good"]], "--total-s", "59") == 1
    assert not (out / "calls").exists()
    assert "good: not started" in capsys.readouterr().out
    assert run(out, [stages["good"]], "--total-s", "600") == 0


def test_a_stage_gets_no_more_than_what_is_left_of_the_total(out: Path, stages: dict[str, suite.Stage]) -> None:
    began = time.monotonic()
    assert run(out, [stages["endless"], stages["good"]], "--limit-s", "2", "--total-s", "3") == 1
    assert time.monotonic() - began < 300
    assert calls(out) == ["endless"]  # what was left after it is less than the limit of a stage


def test_the_quick_stages_are_few_short_and_in_order(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [stage.name for stage in suite.QUICK]
    assert names[:3] == ["tests-real", "gain-gpt2", "gain-resnet50"]
    assert names[3:6] == ["strategies-language", "strategies-texts", "strategies-images"]
    assert names[6:] == ["steps", "grid-gpt", "estimates", "soak"]
    assert sum(stage.limit_s for stage in suite.QUICK) < 1900
    monkeypatch.setattr(suite, "QUICK", (stages["also-good"],))
    assert run(out, [stages["good"]], "--quick") == 0
    assert calls(out) == ["also-good"]


def test_a_result_that_cannot_be_read_counts_as_absent(
    out: Path, stages: dict[str, suite.Stage], capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, [stages["good"]])
    (out / suite.STATE).write_text('{"where": {')
    assert run(out, [stages["good"]]) == 0
    assert calls(out) == ["good", "good"]
    assert f"{out / suite.STATE} is not a JSON object" in capsys.readouterr().out
    part = out / "x.part.json"
    part.write_text("")
    assert stage_tools.Parts(part).get("a", lambda: 1) == 1
    part.write_text("[]")
    assert files.read(part) is None


def test_an_interrupt_ends_the_stage_and_leaves_the_others_for_the_next_call(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, [stages["good"]])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "wait", interrupt)
        assert run(out, [stages["good"], stages["endless"], stages["also-good"]]) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().err
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


def test_results_of_another_machine_are_not_mixed(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(out, [stages["good"]])
    monkeypatch.setattr(suite, "machine", lambda *_: {**HERE, "device": "Other"})
    assert run(out, [stages["slow"]]) == 2
    assert "another machine (device Other, there Test)" in capsys.readouterr().err
    assert calls(out) == ["good"]


def test_a_dry_run_says_so_on_the_page(
    out: Path, stages: dict[str, suite.Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(out, [stages["good"]])
    assert "dry run" not in (out / "SUMMARY.md").read_text()
    monkeypatch.setattr(suite, "machine", lambda *_: {**HERE, "type": "cpu"})
    run(out / "cpu", [stages["good"]], "--device", "cpu")
    assert "A dry run on a CPU" in (out / "cpu" / "SUMMARY.md").read_text()
    monkeypatch.setattr(suite, "machine", lambda *_: {**HERE, "phantom": True})
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
    for name in (
        "torch",
        "optuna",
        "pydantic",
        "tqdm",
        "PyYAML",
        "pytest",
        "lightning",
        "accelerate",
        "sqlalchemy",
        "alembic",
        "colorlog",
        "packaging",
        "mako",
        "pydantic_core",
        "annotated_types",
        "typing_inspection",
    ):
        assert name in done.stdout
    for stage in suite.STAGES:
        assert f"  {stage.name} " in done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable}
