"""The benchmark of workers: it counts what ran twice and what was lost, and fails if a limit is exceeded."""

import json
from pathlib import Path

import pytest

from scripts.bench import fleet
from scripts.bench.fleet import MOST_S, Measured
from tests.postgres import Server, postgres

__all__ = ["postgres"]


@pytest.mark.slow
def test_each_plan_runs_once(postgres: Server) -> None:
    found = fleet.measure(postgres.url("bench"), workers=2, plans=8)
    assert (found.twice, found.lost) == (0, 0)
    assert sum(found.per_worker) == 8
    assert found.overhead_s > 0


@pytest.mark.parametrize(
    ("measured", "code"),
    [
        (Measured(MOST_S, (4, 4), 0, 0), 0),
        (Measured(MOST_S + 0.01, (4, 4), 0, 0), 1),
        (Measured(0.01, (4, 4), 1, 0), 1),
        (Measured(0.01, (4, 3), 0, 1), 1),
    ],
)
def test_what_does_not_hold_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: Measured, code: int
) -> None:
    monkeypatch.setattr(fleet, "measure", lambda url, workers, plans: measured)
    assert fleet.main(["--study", "sqlite:///a?b", "--json", str(tmp_path / "f.json")]) == code
    assert f"ran twice {measured.twice}, lost {measured.lost}" in capsys.readouterr().out
    assert json.loads((tmp_path / "f.json").read_text())["twice"] == measured.twice
