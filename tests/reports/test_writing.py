"""Formats of a report, files that may be replaced, and what trackers log."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autofit.core.errors import UsageError
from autofit.reports import sources
from autofit.reports.assemble import assembled
from autofit.reports.markdown import MARK
from autofit.reports.report import Report
from autofit.reports.writing import FORMATS, attached, check_replaceable, format_of, rendered, write
from tests.recorded import recorded_search


@pytest.fixture(scope="module")
def found() -> Report:
    return assembled(sources.of_result(recorded_search()))


@pytest.fixture(autouse=True)
def page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page in place of the real one, whose contents are tested elsewhere."""
    module = SimpleNamespace(render=lambda report: f"<!DOCTYPE html>\n<title>{len(report.rows)}</title>")
    monkeypatch.setitem(sys.modules, "autofit.reports.page", module)


@pytest.mark.parametrize(
    ("output", "wanted", "expected"),
    [("a.html", None, "html"), ("A.HTM", None, "html"), ("x/a.md", None, "md"), ("a.json", None, "json"),
     ("a.txt", "md", "md"), ("-", None, "md"), ("-", "json", "json")],
)  # fmt: skip
def test_the_suffix_decides_unless_a_format_is_given(output: str, wanted: str | None, expected: str) -> None:
    assert format_of(output, wanted) == expected


def test_an_unknown_suffix_is_refused() -> None:
    with pytest.raises(UsageError, match=r"found the suffix '.pdf'; expected one of .html, .htm, .md"):
        format_of("a.pdf")


@pytest.mark.parametrize("kind", FORMATS)
def test_an_earlier_report_of_any_format_is_replaced(tmp_path: Path, found: Report, kind: str) -> None:
    path = tmp_path / "report"
    for each in (*FORMATS, kind):
        write(rendered(found, each), path)
    assert path.read_text() == rendered(found, kind)
    assert os.listdir(tmp_path) == ["report"]


def test_a_page_keeps_its_doctype_first(found: Report) -> None:
    assert rendered(found, "html").startswith(f"<!DOCTYPE html>{MARK}\n<html")


def test_other_files_are_kept_unless_forced(tmp_path: Path, found: Report) -> None:
    path = tmp_path / "index.html"
    path.write_text("<!doctype html><p>mine")
    with pytest.raises(UsageError, match=r"found a file there that is not an autofit report.*or replace it with"):
        write(rendered(found, "md"), path)
    assert path.read_text() == "<!doctype html><p>mine"
    write(rendered(found, "md"), path, force=True)
    assert path.read_text().startswith(MARK)
    (tmp_path / "empty.md").touch()
    write(rendered(found, "md"), tmp_path / "empty.md")
    with pytest.raises(UsageError, match="found something there"):
        check_replaceable(tmp_path, force=True)


def test_a_path_that_cannot_be_written_is_a_usage_error(tmp_path: Path, found: Report) -> None:
    with pytest.raises(UsageError, match=r"was not written: No such file or directory; expected a directory"):
        write("x", tmp_path / "absent" / "a.md")
    loop = tmp_path / "loop.md"
    loop.symlink_to(loop)
    with pytest.raises(UsageError, match="was not written"):
        write("x", loop)


def test_the_report_is_attached_in_each_format() -> None:
    result = recorded_search()
    files = attached(result)
    assert list(files) == ["autofit-report.html", "autofit-report.md", "autofit-report.json"]
    assert files["autofit-report.html"].lower().startswith("<!doctype html>")
    assert files["autofit-report.md"].startswith(MARK)
    report = json.loads(files["autofit-report.json"])
    assert report["title"] == "train.py:make_resnet"
    assert len(report["rows"]) == len({trial.plan for trial in result.trials})
