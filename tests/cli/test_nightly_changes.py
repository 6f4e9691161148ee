"""What accepting and reverting share: the job is found by its name, and the action gets its plan."""

import argparse
from pathlib import Path

import pytest

from autofit.cli.nightly_changes import change
from autofit.core.errors import UsageError


def test_the_action_gets_the_plan_of_the_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text("schema: autofit.jobs/1\njobs: [{name: gpt, workload: train.py, plan: plans/gpt.yaml}]\n")
    given = argparse.Namespace(jobs=str(jobs), job="gpt", json=False, quiet=True)
    changed: list[Path] = []

    def act(plan: Path) -> str:
        changed.append(plan)
        return "everything"

    assert change(given, act, "changed") == 0
    assert changed == [tmp_path / "plans" / "gpt.yaml"]
    assert capsys.readouterr().out == "everything\n"
    with pytest.raises(UsageError, match="found no job 'gtp'"):
        change(argparse.Namespace(jobs=str(jobs), job="gtp", json=False, quiet=True), act, "changed")
    assert len(changed) == 1
