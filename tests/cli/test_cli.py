"""The command line: exit codes, one JSON document, nothing on stdout but the result, and no process left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

import autofit
from autofit import planfile
from tests.cli.conftest import FakeRemote, Run
from tests.cli.processes import TARGETS, environment


def test_tune_show_and_export(remote: type[FakeRemote], run: Run) -> None:
    code, out, err = run("tune", "train.py:make", "--study", ":memory:")
    assert code == 0
    assert out.startswith("Use micro batch ")
    assert "autofit: tuning on Fake 1 (fake)" in err
    assert "autofit: plan written to autofit.yaml" in err
    assert remote.closed
    assert remote.target.name == "train.py:make"
    plan = planfile.load("autofit.yaml").plan
    assert remote.bench.regret(plan) < 0.03
    code, shown, _ = run("show")
    assert code == 0
    assert shown.splitlines()[:2] == out.splitlines()[:2]
    assert "How it was found" in shown
    code, text, _ = run("export", "--to", "python")
    assert code == 0
    compile(text, "export.py", "exec")
    assert run("export", "-o", "loop.py")[1] == ""
    assert Path("loop.py").read_text() == text


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One real run: a parent, a warm child, a limited child."""
    folder = tmp_path_factory.mktemp("real")
    words = ["tune", f"{TARGETS}:make_mlp", "--memory", "64MiB", "--time", "10min", "--device", "cpu"]
    words += ["--strategies", "batching", "--arg", "width=12"]
    code = (
        "import sys\n"
        "from autofit.cli import main\n"
        f"code = main({words!r})\n"
        "loaded = [name for name in sys.modules if name == 'torch' or name.endswith('targets')]\n"
        "sys.exit(code or (f'loaded in the parent: {loaded}' if loaded else 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    return folder, done


def test_a_real_run_keeps_torch_and_the_users_code_out_of_the_parent(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = tuned
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("Use micro batch", "Keep the baseline"))
    assert "noise of the user's file" not in done.stdout + done.stderr
    assert "\r" not in done.stderr  # no bar: stderr is no terminal
    assert "autofit: tuning for the CPU (" in done.stderr
    assert "accelerator was found" not in done.stderr + done.stdout  # --device cpu was given
    assert "autofit: searching" in done.stderr
    assert (folder / ".autofit" / "study.journal").stat().st_mode & 0o777 == 0o600
    fit = autofit.load(folder / "autofit.yaml")
    assert fit.plan.global_batch_size == 16
    assert fit.proof.worst_steps >= 3
    assert fit.proof.memory.judged_bytes <= 64 * 2**20
