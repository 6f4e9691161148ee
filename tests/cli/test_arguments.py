"""The words of a command line: what is refused, and what help says."""

import json
import sys

import pytest

from autofit import strategies
from tests.cli.conftest import FakeRemote, Run

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
