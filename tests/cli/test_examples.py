"""The examples of `--help`: they parse, those that are cheap run, and they fit into a terminal."""

import shlex
from pathlib import Path

import pytest

from autofit import cli, planfile, searchers, strategies
from autofit.cli import values
from autofit.cli.examples import EXAMPLES, TOUR, shown
from autofit.core.plan import Plan
from autofit.core.units import parse_duration
from autofit.estimation.estimate import described
from tests.conformance.test_exporters import recommendation

LINES = sorted({line for examples in (*EXAMPLES.values(), TOUR) for _, line in examples})


def words(line: str) -> list[str]:
    """Returns the arguments of an example, which the shell may evaluate or write to a file."""
    program, *rest = shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0])
    assert program == "autofit"
    return rest


@pytest.mark.parametrize("line", LINES)
def test_every_example_parses_and_its_values_can_be_read(line: str) -> None:
    given = cli.parser().parse_args(words(line))
    if given.command in ("tune", "estimate"):
        values.keywords(given.arg)
        options = values.options(given)
        assert set(options.strategies or ()) <= {strategy.name for strategy in strategies.members()}
        if given.command == "estimate":
            assert described(given.device, options.memory_budget)
        elif given.time is not None:
            assert parse_duration(given.time) > 0


@pytest.mark.parametrize("line", [line for line in LINES if line.split()[1] in ("show", "export")])
def test_the_examples_of_show_and_export_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = Plan(values={"micro_batch_size": 4, "accumulation_steps": 2})
    for name in ("autofit.yaml", "bert.yaml"):
        planfile.save(recommendation(plan, plan), name)
    assert cli.main(words(line)) == 0
    assert capsys.readouterr().out or (tmp_path / "loop.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LINES if line.split()[1] == "estimate"])
def test_the_examples_of_estimate_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parent / "targets.py").read_text()
    (tmp_path / "train.py").write_text(text + "\n\nmake_workload = make_mlp\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words(line)) == 0


@pytest.mark.parametrize("command", ["", *EXAMPLES])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_into_the_terminal_and_ends_with_examples(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as end:
        cli.main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert max(map(len, out.splitlines())) <= columns
    assert out.rstrip().endswith(shown(EXAMPLES[command] if command else TOUR))


def test_every_command_has_examples_and_its_help_names_the_searchers_and_techniques(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(EXAMPLES) == list(cli._COMMANDS)
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    first, *others = (member.name for member in searchers.members())
    assert ", ".join([f"{first} (default)", *others]) in out
    assert all(strategy.name in out for strategy in strategies.members())
