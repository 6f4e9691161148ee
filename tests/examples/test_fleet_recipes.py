"""The recipes that start workers: each is run here as far as its launcher is installed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from autofit.cli import parser
from tests.examples.loading import EXAMPLES

RECIPES = EXAMPLES / "fleet"
ROOT = EXAMPLES.parent
DONE = "0 plans run for 0 searches"


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a machine whose database is new."""
    return {
        **os.environ,
        "AUTOFIT_STUDY": f"sqlite:///{folder / 'fleet.db'}?timeout=30",
        "AUTOFIT_RUNTIME_DIR": str(folder),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def run(words: list[str], folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    given = environment(folder) | more
    return subprocess.run(words, check=False, cwd=folder, env=given, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_a_shell_starts_a_worker_for_each_device(tmp_path: Path) -> None:
    words = ["bash", str(RECIPES / "workers.sh"), "cpu", "cpu"]
    done = run(words, tmp_path, AUTOFIT=str(Path(sys.executable).parent / "autofit"), IDLE="0.1s")
    assert (done.returncode, done.stdout.splitlines()) == (0, [DONE] * 2), done.stderr


@pytest.mark.slow
def test_a_shell_says_that_no_database_is_given(tmp_path: Path) -> None:
    done = run(["bash", str(RECIPES / "workers.sh"), "cpu"], tmp_path, AUTOFIT_STUDY="")
    assert done.returncode != 0
    assert "AUTOFIT_STUDY: is not set: the URL of the database" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("package", "where"), [("submitit", ("--cluster", "local")), ("ray", ("--gpus", "0"))])
def test_a_launcher_starts_workers(package: str, where: tuple[str, str], tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"needs the package {package}")
    recipe = str(RECIPES / f"{package}_workers.py")
    done = run([sys.executable, recipe, *where, "--workers", "2", "--idle", "0.1s"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(DONE) == 2


def test_the_batch_script_has_a_command_that_autofit_takes() -> None:
    text = (RECIPES / "workers.sbatch").read_text()
    subprocess.run(["bash", "-n", str(RECIPES / "workers.sbatch")], check=True)
    line = text.splitlines()[-1]
    given = parser().parse_args(line.partition("autofit ")[2].split())
    assert (given.command, given.study, given.idle) == ("worker", "env:AUTOFIT_STUDY", "10min")
