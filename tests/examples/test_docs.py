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
from autofit.doctor import findings
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


DOCTOR = text_of("doctor.md")
KINDS = re.findall(r"^### ([\w-]+)\n\n(.*?)(?=^##|\Z)", DOCTOR, re.MULTILINE | re.DOTALL)
"""The kinds of findings on the doctor's page, each with its section."""
DIFFS = {name: diff for name, text in KINDS for diff in code_blocks(text, "diff")}
"""Lines that cause a finding or do not. Two kinds have none: their remedy is a variable, or a package."""
ON_ACCELERATORS = ("sync", "fp32-products", "launch-bound", "autocast-cache", "cudnn-workspace")
"""Kinds of findings whose lines run on a CPU, but are not judged there."""
WITH_TRANSFORMERS = ("attention-scores", "checkpoint-no-effect")
"""Kinds of findings whose lines need transformers."""
FIRST, DIAGNOSE, OBJECTS = code_blocks(DOCTOR, "python")
SLOW = pytest.mark.slow
MARKS = {
    "loader": (SLOW,),
    "worker-growth": (SLOW,),
    "recompiles": (SLOW, pytest.mark.filterwarnings("default")),
}
HEADS = r"^ ?\d+  (\S+)  (.+)$"
"""The first lines of findings, in what the doctor prints."""


def in_a_script(*codes: str) -> dict[str, Any]:
    """Runs code as if it were in a script of the user's, on fewer samples, and returns its variables."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    for code in codes:
        exec(compile(code.replace("8192", "4096"), "train.py", "exec"), scope)
    return scope


def test_every_kind_of_finding_has_a_section() -> None:
    assert [name for name, _ in KINDS] == [member.id for member in findings.BUILT_IN]
    assert [name for name, _ in KINDS if name not in DIFFS] == ["fragmentation", "versions"]
    for name, text in KINDS:
        assert re.findall(r"^\* \*\*(\w+):\*\*", text, re.MULTILINE) == ["Symptom", "Cause", "Measured"], name
        assert f"[`{name}`](#{name})" in DOCTOR.partition("\n## ")[0], "the table of symptoms has each kind"


def test_the_code_of_the_doctors_page_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    scope = in_a_script(FIRST)
    (shown,) = code_blocks(DOCTOR, "text")
    printed = capsys.readouterr().out
    assert re.findall(HEADS, printed, re.MULTILINE) == re.findall(HEADS, shown, re.MULTILINE) != []
    exec(compile(DIAGNOSE, "train.py", "exec"), scope)
    assert capsys.readouterr().out.startswith("Sequential: watched 6 steps of 512 samples on ")


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=MARKS.get(kind, ())) for kind in DIFFS])
def test_the_doctor_finds_what_its_page_says_and_not_in_the_corrected_lines(
    kind: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if kind == "recompiles":
        request.getfixturevalue("compiler")
    if kind in WITH_TRANSFORMERS:
        pytest.importorskip("transformers")
    if kind == "logits" and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip("the corrected lines need torch 2.13")
    monkeypatch.setattr("autofit.doctor.session.members", lambda: findings.chosen([kind]))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)  # two workers are the most
    watch = [] if "autofit.diagnose" in DIFFS[kind] else ["loader = watched = autofit.watch(loader, show=False)"]
    for sign, count in (("-", 1), ("+", 0)):
        lines = "".join(line[1:] for line in DIFFS[kind].splitlines(keepends=True) if line[0] in (" ", sign, "\n"))
        scope = in_a_script(FIRST.partition("history")[0], OBJECTS, *watch, lines)
        diagnosis = scope["watched"].diagnosis if watch else scope["diagnosis"]
        assert [each.id for each in diagnosis.unchecked] == [kind] * (kind in ON_ACCELERATORS), sign
        found = [each.id for each in diagnosis.findings if not each.minor]
        assert found == [kind] * count * (kind not in ON_ACCELERATORS), sign


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
