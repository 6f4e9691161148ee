"""`autofit nightly revert`: back to the plan before, and forth again."""

from pathlib import Path

import pytest

from autofit import planfile
from autofit.nightly import proposals
from tests.cli.conftest import Run
from tests.nightly.benches import calm, faster, recommended

BENCH = calm()
OLD, NEW = recommended(BENCH, BENCH.space.baseline), recommended(BENCH, faster(BENCH))


def test_the_predecessor_is_the_accepted_plan_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text("schema: autofit.jobs/1\njobs: [{name: gpt, workload: train.py, plan: gpt.yaml}]\n")
    planfile.save(OLD, "gpt.yaml")
    code, _, err = run("nightly", "revert", "gpt")
    assert code == 2
    assert "found no predecessor" in err
    proposals.replace(NEW, Path("gpt.yaml"))
    code, out, err = run("nightly", "revert", "gpt")
    assert code == 0
    assert "float32" in out
    assert "autofit: reverted: " in err
    assert planfile.load("gpt.yaml") == OLD
    assert run("nightly", "revert", "gpt")[0] == 0
    assert planfile.load("gpt.yaml") == NEW
