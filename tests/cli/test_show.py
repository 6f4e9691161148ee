"""`autofit show`: what a stranger's plan file can do to a terminal."""

import json
from pathlib import Path

import yaml

from autofit.core.errors import (
    UserCodeError,
)
from tests.cli.conftest import FakeRemote, Run


def test_control_sequences_of_a_plan_file_do_not_reach_the_terminal(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x1b]0;title\x07 \x1b[2Jgone \x9b2J"]
    data["environment"]["device_name"] = "\x1b[31mred"
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml")
    assert code == 0
    assert "red" in out
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
    code, out, err = run("export", "evil.yaml")
    assert code == 0
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)


def test_defect_15_what_is_unseen_reaches_the_terminal_neither_as_json_nor_in_errors(
    remote: type[FakeRemote], run: Run
) -> None:
    unseen = {"\x9b", "\u202e", "\u2066", "\x7f"}
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x9b2J\u202egone\u2066\x7f"]
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml", "--json")
    assert code == 0
    assert json.loads(out)["caveats"] == data["caveats"]
    assert not unseen & set(out + err)
    for words in (
        ("show", "no\u202e\x9bne.yaml"),
        ("tune", "t.py", "--searcher", "\u202e\x9bquick"),
        ("tune", "t.py", "--numerics", "\u202e\x9bbold"),
        ("\u202e\x9btune",),
        ("tune", "t.py", "-o", "\u202e\x9b/a.yaml"),
    ):
        for more in ((), ("--json",)):
            code, out, err = run(*words, *more)
            assert code == 2
            assert err
            assert not unseen & set(out + err)
    remote.fails = UserCodeError("your code failed: \u202eboom", "ValueError: \u202e\x9bboom")
    _, out, err = run("tune", "t.py", "--json", "--study", ":memory:")
    assert "boom" in err
    assert not unseen & set(out + err)


def test_a_study_is_not_a_plan_file_and_the_command_that_shows_it_is_named(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", "study.journal", "--trials", "3")
    code, out, err = run("show", "study.journal")
    assert (code, out) == (2, "")
    assert "study.journal: found a study (a journal of trials)" in err
    assert "`autofit report study.journal`" in err
