"""The documentation in examples/docs: its code runs, its command lines parse, and no part of the product is missing."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import autofit
from autofit import exporters
from autofit.cli import parser
from autofit.core import errors
from autofit.core.outcome import Status
from tests.markdown import code_blocks

DOCS = Path(__file__).parents[2] / "examples" / "docs"
PAGES = sorted(DOCS.glob("pages/*.md"))
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for block in code_blocks(page.read_text(encoding="utf-8"), "bash")
    for line in block.splitlines()
    if line.startswith("autofit ")
]


def text_of(name: str) -> str:
    return (DOCS / "pages" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_code_of_the_first_page_tunes_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = autofit.tune

    def tune(*given: Any, **named: Any) -> autofit.Fit:
        return real(*given, **{**named, "study": ":memory:", "device": "cpu", "progress": False})

    monkeypatch.setattr(autofit, "tune", tune)
    scope: dict[str, Any] = {}
    blocks = code_blocks(text_of("index.md"), "python")
    for number, code in enumerate(blocks):
        exec(compile(code, f"index.md, block {number}", "exec"), scope)  # running the documentation is the test
        if "model = " in code:
            before = scope["model"][0].weight.detach().clone()
    assert len(blocks) == 5
    assert not torch.equal(scope["model"][0].weight, before)
    assert autofit.load("autofit.yaml").plan.global_batch_size == 64
    assert (tmp_path / "autofit.html").stat().st_size > 10_000
    assert scope["make_workload"]()["model"] is scope["model"]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_its_command_lines_parse(page: str, line: str) -> None:
    assert parser().parse_args(shlex.split(line, comments=True)[1:]), page


def test_the_lines_that_a_trainer_needs_are_those_of_an_example_and_at_most_twelve() -> None:
    diffs = re.findall(r'^```diff title="(.+?)"\n(.*?)^```', text_of("trainers.md"), re.MULTILINE | re.DOTALL)
    assert len(diffs) == 5
    for path, diff in diffs:
        example = (DOCS.parents[1] / path).read_text(encoding="utf-8").splitlines()
        added = [line.removeprefix("+") for line in diff.splitlines()]
        assert [line for line in added if line not in example] == [], path
        assert 1 <= len(added) <= 12


def test_every_export_target_has_its_row() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([\w.]+)` \| ?(?:\w+ )?([\d.]*)(?: to )?([\d.]*)", text_of("trainers.md"), re.MULTILINE
    )
    assert rows == [(each.name, each.filename, each.oldest, each.newest) for each in exporters.BUILT_IN]


def test_every_error_has_its_exit_code_and_a_remedy() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \| .+ \| .+ \|$", text_of("messages.md"), re.MULTILINE))
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]
    assert rows == {each.__name__: str(each.exit_code) for each in classes if issubclass(each, errors.AutofitError)}


def test_every_outcome_has_a_row() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \|", text_of("messages.md"), re.MULTILINE)
    assert rows == [status.value for status in Status]


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere() -> None:
    navigation = (DOCS / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = set(re.findall(r"(\w+\.md)$", navigation, re.MULTILINE))
    assert named == {page.name for page in PAGES} | {"commands.md", "every_message.md"}
    for page in PAGES:
        links = re.findall(r"\]\((\w+\.md)", page.read_text(encoding="utf-8"))
        assert set(links) <= named, page.name


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs, from the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "-f", str(DOCS / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    strategies = (tmp_path / "site" / "strategies" / "index.html").read_text(encoding="utf-8")
    assert "keeps only the inputs of some blocks" in strategies.replace("Keeps", "keeps")
    commands = (tmp_path / "site" / "commands" / "index.html").read_text(encoding="utf-8")
    assert "--target-version" in commands
    messages = (tmp_path / "site" / "every_message" / "index.html").read_text(encoding="utf-8")
    assert "<td>Exclude fewer, or choose others.</td>" in messages
    assert "global_batch_size" in (tmp_path / "site" / "python" / "index.html").read_text(encoding="utf-8")
