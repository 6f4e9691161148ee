"""The nightly rule over simulated years: few of them here, with the limits that 1,000 must keep."""

import json
from pathlib import Path

import pytest

from scripts.bench.nightly import simulated_years
from scripts.bench.nightly.noise import simulated, tables
from scripts.bench.nightly.simulated_years import Figure, of_memory, of_throughput

YEARS = 40


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.01, 0.02])
def test_few_false_alarms_and_a_drop_found_in_time(deviation: float) -> None:
    found = of_throughput(simulated(deviation, shared=False), deviation, YEARS)
    assert len(found) == 2
    assert all(figure.limit is not None for figure in found)
    assert [figure for figure in found if not figure.holds] == []


def test_growth_of_memory_is_found_in_time() -> None:
    assert [figure for figure in of_memory(YEARS) if not figure.holds] == []


def test_a_figure_beyond_its_limit_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Figure("simulated 1%", False, "false alarms in 100 nights", 0.1, 0.3)
    bad = Figure("simulated 1%", False, "5 % drop found within 1 night", 0.79, 0.8, least=True)
    for figures, code in (([good], 0), ([good, bad], 1)):
        monkeypatch.setattr(simulated_years, "figures", lambda years, figures=figures: figures)
        assert simulated_years.main(["--years", "1", "--json", str(tmp_path / "f.json")]) == code
    assert "at least 0.8  FAILED" in capsys.readouterr().out
    assert json.loads((tmp_path / "f.json").read_text())["figures"][1]["value"] == 0.79


def test_the_recorded_tables_are_there() -> None:
    assert len(tables()) >= 5
