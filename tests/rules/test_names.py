"""The vocabulary of DESIGN.md 2: one word per idea, and one idea per word."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from tests.rules.source import ROOT, Module, modules, scripts

RETIRED = r"predict|fores(?:ee|aw|ight)|foret(?:ell|old)|forecast"
"""Words that are not written any more. What estimates is an `Estimator`, and what it says an `Estimate`."""
RETIRED_NAMES = {
    RETIRED: "estimate",
    r"(?:^|_)own(?:_(?:bytes|batch|plan|setting|size|trial))?$|(?:^|_)yours(?:_|$)": "baseline",
    r"(?:^|_)standing(?:_|$)": "initial, static (kept between steps) or fixed (independent of the batch)",
    r"vouch|(?:^|_)told(?:_|$)|(?:^|_)weighed(?:_|$)": "covered; given, estimated or recorded; weighted",
}
"""Retired words in names, with what is written instead."""
RETIRED_CLASSES = re.compile(r"(?:Technique|Job|Task|Config)$")
"""Endings of class names: write `Strategy`, `Workload` and `Plan`."""
JOBS = "autofit/nightly/"
"""Here a `Job` is a workload with its accepted plan."""
RETIRED_TEXTS = {
    RETIRED: "estimate",
    r"\bown settings?\b|\byour setting\b|\byours\b|\byour own (?:plan|batch|baseline)\b": "the baseline",
    r"\bso many\b": "this many",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more than\b)\w": "is not",
    r"\btold\b|\bvouch": "given, estimated, recorded",
    r"\bstanding\b": "static, initial, fixed",
    r"\bweighed\b": "weighted",
    r"\b(?:could|can)(?:not| not) be put back\b": "cannot be restored",
    r"\bgo(?:es)? on\b": "continues, resumes",
}
"""Retired wordings in texts, with what is written instead."""
EXCEPTIONS = {
    ("autofit/estimation/estimation.py", "own"): "field of `autofit estimate --json` (autofit.estimate/1)",
    ("autofit/memory/breakdown.py", "standing"): "field of saved reports and estimates (autofit.report/1)",
}
"""Words that stay in one file, with the reason."""
TRANSCRIPT = re.compile(r"^```text$.*?^```$", re.DOTALL | re.MULTILINE)
"""Output of the program in README.md. Its words are those of the program's texts, which are checked there."""
ALLOWED = re.compile(r"memory_prediction\.md|test_prediction\.py")
"""Names of files."""
UNITS = ("_s", "_bytes", "_per_s", "_ratio")
WITHOUT_UNITS = re.compile(
    r"(?:^|_)(?:seconds|secs?|millis(?:econds)?|ms|minutes?|mib|gib|mb|gb|kb|megabytes|gigabytes|percent|pct|hz)$"
)
"""Endings that name a unit other than those of the package."""
UNIT_EXCEPTIONS = {
    "seconds": "a method or local whose value is in seconds, named for what it is",
    "minutes": "a part of a duration that is written out",
    "mib": "bytes in a MiB, and sizes as an allocator setting lists them",
}


def names(module: Module) -> Iterator[tuple[str, int]]:
    """Yields what a module names itself: functions, classes, arguments, variables and attributes, with the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def texts(module: Module) -> Iterator[tuple[str, int]]:
    """Yields every text in a module, docstrings included, with the line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def test_no_class_name_has_two_meanings() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.classes():
            found[node.name.lstrip("_")].append(str(module.path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def retired(text: str, words: Mapping[str, str] = MappingProxyType(RETIRED_TEXTS)) -> list[str]:
    """Returns the retired words in a text, or in a name by `RETIRED_NAMES`."""
    plain = " ".join(ALLOWED.sub("", text).split())
    return [found[0] for pattern in words if (found := re.search(pattern, plain, re.IGNORECASE))]


def vocabulary() -> Iterator[Module]:
    """Yields the modules whose words are those of DESIGN.md 2."""
    return iter((*modules(), *scripts()))


def other_texts() -> Iterator[tuple[str, int, str]]:
    """Yields the paragraphs of README.md and the lines of the shell scripts, with their place."""
    readme = TRANSCRIPT.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / "README.md").read_text(encoding="utf-8"))
    line = 1
    for paragraph in re.split(r"(\n\n)", readme):
        yield "README.md", line, paragraph
        line += paragraph.count("\n")
    for path in sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file()):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield f"scripts/{path.name}", number, text


def found_in_names() -> Iterator[tuple[str, int, str]]:
    """Yields each retired word in a name: path, line, word."""
    for m in vocabulary():
        for name, line in [*names(m), (m.path.stem, 1)]:
            yield from ((str(m.path), line, word.strip("_")) for word in retired(name, RETIRED_NAMES))


def found_in_texts() -> Iterator[tuple[str, int, str]]:
    """Yields each retired word in a text: path, line, word."""
    of_modules = ((str(m.path), line, text) for m in vocabulary() for text, line in texts(m))
    for path, line, text in (*of_modules, *other_texts()):
        yield from ((path, line, word) for word in retired(text))


def test_no_name_is_a_retired_word() -> None:
    assert [one for one in found_in_names() if (one[0], one[2]) not in EXCEPTIONS] == []


def test_no_text_has_a_retired_word() -> None:
    assert [one for one in found_in_texts() if (one[0], one[2]) not in EXCEPTIONS] == []


def test_each_exception_is_still_needed() -> None:
    found = {(path, word) for path, _, word in (*found_in_names(), *found_in_texts())}
    assert set(EXCEPTIONS) - found == set()


def test_no_class_is_called_by_a_retired_word() -> None:
    found = [
        f"{m.path}: {node.name}"
        for m in vocabulary()
        for node in m.classes()
        if RETIRED_CLASSES.search(node.name) and not str(m.path).startswith(JOBS)
    ]
    assert found == []


def test_units_are_those_of_the_design() -> None:
    found = sorted(
        f"{m.path}:{line} {name}"
        for m in modules()
        for name, line in names(m)
        if WITHOUT_UNITS.search(name.lower()) and name.lower().lstrip("_") not in UNIT_EXCEPTIONS
    )
    assert found == []


@pytest.mark.parametrize(
    "name",
    [
        "predicted_bytes", "Foresight", "foretold", "FORECAST", "own", "_own", "own_size", "yours", "standing",
        "add_standing", "vouched_for_by", "told", "weighed",
    ],
)  # fmt: skip
def test_the_rule_sees_retired_names(name: str) -> None:
    assert retired(name, RETIRED_NAMES)


@pytest.mark.parametrize("name", ["own_forward", "owner", "OWNED", "standings", "outstanding", "untold", "known"])
def test_the_rule_lets_other_names_pass(name: str) -> None:
    assert not retired(name, RETIRED_NAMES)


@pytest.mark.parametrize("name", ["CheckpointTechnique", "TrainingJob", "Task", "TuneConfig"])
def test_the_rule_sees_retired_class_names(name: str) -> None:
    assert RETIRED_CLASSES.search(name)


@pytest.mark.parametrize(
    "text",
    [
        "1.4x your own setting", "measured as your\n    setting", "Yours: micro batch 4", "So many plans failed",
        "the answer is no JSON", "values that are no numbers", "the estimator is told", "it vouches for",
        "standing memory", "weighed by tokens", "could not be put back", "cannot be put back",
        "the same command goes on", "peaks are predicted",
    ],
)  # fmt: skip
def test_the_rule_sees_retired_wordings(text: str) -> None:
    assert retired(text)


@pytest.mark.parametrize(
    "text",
    [
        "on your own device", "the allocator's settings", "there is no formula", "it is no longer live",
        "at most, and is no more than that", "everything is put back", "the notebook is going on", "ongoing",
    ],
)  # fmt: skip
def test_the_rule_lets_other_texts_pass(text: str) -> None:
    assert not retired(text)


@pytest.mark.parametrize("name", ["time_ms", "size_mb", "share_percent", "timeout_seconds"])
def test_the_rule_sees_other_units(name: str) -> None:
    assert WITHOUT_UNITS.search(name)
