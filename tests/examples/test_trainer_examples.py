"""The examples that train with another library, each in a process of its own, since these libraries change it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.api import load
from tests.rules.source import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "plan", "last"),
    [
        ("lightning_trainer", "autofit_lightning_plan.yaml", r"step 20: loss \d\.\d{3}"),
        ("accelerate_loop", "autofit_accelerate_plan.yaml", r"after one epoch: loss \d\.\d{3}"),
    ],
)
def test_it_tunes_and_trains_under_the_plan(name: str, plan: str, last: str, tmp_path: Path) -> None:
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(last, done.stdout.splitlines()[-1])
    fit = load(tmp_path / plan)
    assert fit.plan.global_batch_size == 64
    assert fit.proof.worst_steps >= 3
