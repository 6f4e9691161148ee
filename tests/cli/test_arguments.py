"""The words of a command line: what is refused, what help says, and that its examples parse and run."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from autofit import cli, planfile, searchers, strategies
from autofit.cli import values
from autofit.cli.arguments import EXAMPLES, TOUR
from autofit.core.plan import Plan
from autofit.core.units import parse_duration
from autofit.estimation.estimate import described
from tests.cli.conftest import FakeRemote, Run
from tests.conformance.test_exporters import answer

USAGE = [
    ((), "COMMAND"),
    (("tune",), "TARGET"),
    (("tune", "t.py", "--numerics", "bold"), "bold"),
    (("tune", "t.py", "--memory", "much"), "20GiB"),
    (("tune", "t.py", "--memory", "20"), 'did you mean "20GiB"?'),
    (("tune", "t.py", "--memory", "-1"), "more than zero|cannot read"),
    (("tune", "t.py", "--memory", "nan"), "cannot read"),
    (("tune", "t.py", "--time", "soon"), "5min"),
    (("tune", "t.py", "--arg", "depth"), "NAME=VALUE"),
    (("tune", "t.py", "--arg", "x=[1"), "the value of --arg 'x=[1' cannot be read"),
    (("tune", "t.py", "--arg", "x=2026-01-31"), "Quote a string that YAML reads as something else"),
    (("tune", "t.py", "--searcher", "quick"), "unknown searcher"),
    (("tune", "t.py", "--planned-steps", "0"), "whole number of at least 1"),
    (("tune", "t.py", "--planned-steps", "1e5"), "whole number of at least 1"),
    (("tune", "t.py", "--trials", "-1"), "found '-1'; expected a whole number of at least 1"),
    (("tune", "t.py", "--trials", "0"), "whole number of at least 1"),
    (("tune", "t.py", "--global-batch", "0"), "whole number of at least 1"),
    (("tune", "t.py", "--max-global-batch", "-8"), "whole number of at least 1"),
    (("tune", "t.py", "--memory", "1e400GiB"), "too large"),
    (("tune", "t.py", "--numerics", "exat"), "did you mean 'exact'?"),
    (("tun",), "did you mean 'tune'?"),
    (("completion", "bsh"), "did you mean 'bash'?"),
    (("tune", "t.py", "-o", "nowhere/autofit.yaml"), "not a writable directory"),
    (("tune", "t.py", "-o", "."), "not an autofit plan"),
    (("show", "missing.yaml"), "Check the path"),
    (("export", "missing.yaml"), "Check the path"),
]


@pytest.mark.parametrize(("words", "said"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_a_usage_error_is_2_and_says_what_is_expected(
    words: tuple[str, ...], said: str, remote: type[FakeRemote], run: Run
) -> None:
    remote.fails = AssertionError("nothing may be opened")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert any(part in err for part in said.split("|"))
    if not words:
        return
    code, out, _ = run(*words, "--json")
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize("command", [(), ("tune",), ("show",), ("export",)])
def test_help_names_the_choices(command: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: autofit")
    expected = {(): "exit codes", ("tune",): "--global-batch", ("show",): "PLAN", ("export",): "--to"}
    assert expected[command] in out


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autofit", *words]


@pytest.mark.parametrize("command", ["tune", "estimate"])
def test_help_names_the_strategies_of_autofit_and_says_how_to_list_others(command: str, run: Run) -> None:
    said = " ".join(run(command, "--help")[1].split())
    assert {member.name for member in strategies.BUILT_IN} <= set(said.replace(",", " ").split())
    assert "one that another package adds; an unknown name lists them all" in said


LINES = sorted({line for examples in (*EXAMPLES.values(), TOUR) for line in examples})


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
        planfile.save(answer(plan, plan), name)
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
    assert out.rstrip().endswith((EXAMPLES[command] if command else TOUR)[-1])


def test_every_command_has_examples_and_its_help_names_the_searchers_and_techniques(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(EXAMPLES) == list(cli.COMMANDS)
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    first, *others = (member.name for member in searchers.members())
    assert ", ".join([f"{first} (default)", *others]) in out
    assert all(strategy.name in out for strategy in strategies.members())


def test_an_action_is_a_command_of_two_words_and_any_other_word_is_a_jobs_file() -> None:
    read = cli.parser().parse_args
    assert read(["nightly"]).command == "nightly"
    assert read(["nightly"]).jobs == "jobs.yaml"
    assert read(["nightly", "team.yaml", "--job", "a", "--job", "b"]).only == ["a", "b"]
    assert read(["nightly", "./init"]).jobs == "./init"
    assert read(["nightly", "init", "train.py"]).command == "nightly init"
    assert read(["nightly", "init", "train.py"]).target == "train.py"
    assert read(["nightly", "accept", "gpt"]).job == "gpt"
    assert read(["nightly", "accept", "gpt", "--jobs", "team.yaml"]).jobs == "team.yaml"


def test_every_command_has_the_common_flags_and_help_names_the_exit_code_of_a_regression() -> None:
    for words in (["nightly"], ["nightly", "init", "t.py"], ["nightly", "accept", "gpt"]):
        given = cli.parser().parse_args([*words, "--json", "--quiet"])
        assert (given.json, given.quiet) == (True, True)
    assert "  4    nightly: " in cli._EXIT_CODES
