"""Every message that a user may see is on a page of the documentation, with a remedy. It is made from the source."""

import re
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.examples.loading import load


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    pytest.importorskip("mkdocs")
    return load("docs/messages")


@pytest.fixture(scope="module")
def listed(hook: ModuleType) -> dict[str, list[Any]]:
    """The messages of autofit by subject."""
    return dict(hook.by_subject())


@pytest.fixture
def package(hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one module in place of autofit's."""
    monkeypatch.setattr(hook, "PACKAGE", tmp_path)
    return tmp_path / "search.py"


def test_every_message_has_a_remedy(hook: ModuleType, listed: dict[str, list[Any]]) -> None:
    subjects = {each.title: each for each in hook.subjects()}
    assert {title for title in listed if title not in subjects} == set(), (
        "modules without a subject: add them in remedies.yaml"
    )
    found = [(m.module, m.text) for title, each in listed.items() for m in each if not subjects[title].remedy(m)]
    assert found == [], "messages that have no remedy: let them say what to do next, or add one in remedies.yaml"


def test_no_remedy_and_no_module_is_out_of_date(hook: ModuleType, listed: dict[str, list[Any]]) -> None:
    modules = {path.relative_to(hook.PACKAGE).with_suffix("").as_posix() for path in hook.PACKAGE.rglob("*.py")}
    folders = {str(parent) for module in modules for parent in Path(module).parents}
    named = Counter(module for subject in hook.subjects()[1:] for module in subject.modules)
    for subject in hook.subjects():
        needed = [m.text for m in listed.get(subject.title, []) if not hook.ADVICE.search(m.text)]
        assert [part for part in subject.remedies if not any(part in text for text in needed)] == [], subject.title
        assert set(subject.modules) - modules - folders == set(), subject.title
    assert [module for module, times in named.items() if times > 1] == []


def test_every_error_that_is_made_with_a_text_is_found(hook: ModuleType, listed: dict[str, list[Any]]) -> None:
    """Counted in another way: by the positions at which a text follows the name of the error."""
    pattern = re.compile(rf"\b(?:{'|'.join(hook.ERRORS)})\(\s*f?[\"']")
    written = sum(len(pattern.findall(path.read_text(encoding="utf-8"))) for path in hook.PACKAGE.rglob("*.py"))
    found = [message for each in listed.values() for message in each if message.error]
    assert written * 0.95 < len(found) <= written + 15  # a text may begin with a name, or be written twice in a module


CALLS = """
_HELP = "Pass another one"

class Strategy:
    about = "a description that is not a message"

def check(value, help="four words of help"):
    '''A docstring is not a message.'''
    assert value, "an assertion is not a message"
    if value == "a text that is compared":
        raise errors.UsageError(f"found {value!r} as size; expected a number. {_HELP}.")
    if value:
        raise SpaceError("found no plan " + named(value, "a name that is written here"))
    return f"the step needs {value + 1} micro batches here", "three short words"
"""


def test_texts_are_found_where_they_are_written(hook: ModuleType, package: Path) -> None:
    package.write_text(CALLS, encoding="utf-8")
    found = {message.text: message.error for message in hook.messages()}
    assert found == {
        "four words of help": "",  # the default of an argument: only `help=` of a call is a description
        "found … as size; expected a number. Pass another one.": "UsageError",
        "found no plan …": "SpaceError",
        "a name that is written here": "",
        "the step needs … micro batches here": "",
    }


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("found 3; expected 4. Pass 4.", "Pass 4."),
        ("found 3; pass 4 instead", "pass 4 instead"),
        ("what it said before … Give more time.", "Give more time."),
        ("numerics='exact' keeps it; numerics='mixed' allows it", "numerics='mixed' allows it"),
        ("the given batch is set to pass", ""),
        ("found 3; expected a number", ""),
    ],
)
def test_advice_is_told_from_the_cause(hook: ModuleType, text: str, advice: str) -> None:
    cause, found = hook.Message("search", text).parts()
    assert found == advice
    assert text.startswith(cause)


def test_an_error_without_advice_says_what_it_expected(hook: ModuleType) -> None:
    error = hook.Message("search", "found 3; expected a number of at least 4", "UsageError")
    assert error.parts() == ("found 3", "expected a number of at least 4")


def test_a_remedy_in_common_is_not_for_errors(hook: ModuleType) -> None:
    subject = hook.Subject("Search", ("search",), {"was lost": "Find it."}, otherwise="None is needed.")
    assert subject.remedy(hook.Message("search", "the plan was slow today")) == "None is needed."
    assert subject.remedy(hook.Message("search", "the plan was slow today", "SpaceError")) == ""
    assert subject.remedy(hook.Message("search", "the trace was not made", "Untraceable")) == "None is needed."
    assert subject.remedy(hook.Message("search", "the plan was lost", "SpaceError")) == "Find it."


def test_a_message_that_is_new_needs_a_remedy(hook: ModuleType, package: Path) -> None:
    package.write_text('raise SpaceError("there are no plans today")\n', encoding="utf-8")
    (message,) = hook.messages()
    (search,) = [each for each in hook.subjects() if each.title == "Search, race and proof"]
    assert hook.by_subject() == {search.title: [message]}
    assert search.remedy(message) == ""


def test_a_module_that_is_new_needs_a_subject(hook: ModuleType, package: Path) -> None:
    package.with_name("other.py").write_text('note = "a note of a new module"\n', encoding="utf-8")
    assert [message.text for message in hook.by_subject()["?"]] == ["a note of a new module"]


def test_the_page_shows_each_message_in_a_table_or_a_list(hook: ModuleType, package: Path) -> None:
    package.write_text(
        'raise SpaceError(f"found {x!r} | <b> as `size`. Pass *one*.")\nnote = f"the plan {x} was slow"\n',
        encoding="utf-8",
    )
    page = hook.page()
    assert "| found … &#124; &#60;b&#62; as &#96;size&#96; | Pass &#42;one&#42;. |" in page
    assert "was not run or not chosen.**\n\n* the plan … was slow" in page
    assert page.count("## ") == len(hook.subjects()[1:])


def test_the_page_of_autofit_is_well_formed(hook: ModuleType) -> None:
    page = hook.page()
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {3}
    assert "****" not in page
    assert len(rows) > 300
