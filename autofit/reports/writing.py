"""A report as a file: which format, which files may be replaced, and the files that trackers log."""

from pathlib import Path

from autofit.core.errors import UsageError
from autofit.files import head_of, replaceable, unwritable, write_atomically
from autofit.reports.assemble import assembled
from autofit.reports.markdown import MARK, to_markdown
from autofit.reports.page import render
from autofit.reports.report import Report, to_json
from autofit.reports.sources import of_result
from autofit.search.evidence import SearchResult

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".json": "json"}
FORMATS = ("html", "md", "json")
_MARKS = (MARK.encode(), b'"schema": "autofit.report/')
"""One of them is in the first bytes of every report."""
_DOCTYPE = "<!doctype html>"


def format_of(output: str | Path, wanted: str | None = None) -> str:
    """Returns the format of a report: the one that is wanted, or else that of the suffix.

    Raises:
        UsageError: the suffix is not known.
    """
    if wanted is not None:
        return wanted
    if str(output) == "-":
        return "md"
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"cannot choose a format for {output}: found the suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}. "
            f"Rename it, or give the format: {', '.join(FORMATS)}."
        )
    return SUFFIXES[suffix]


def rendered(report: Report, kind: str) -> str:
    """Returns a report as text of a format: "html", "md" or "json"."""
    if kind == "html":
        return marked(render(report))
    return to_markdown(report) if kind == "md" else to_json(report)


def write(text: str, output: str | Path, *, force: bool = False) -> None:
    """Writes a report completely or not at all. An earlier report is replaced, any other file only with `force`.

    Raises:
        UsageError: something else than an earlier report is there, or it cannot be written.
    """
    try:
        write_atomically(check_replaceable(output, force=force), text.encode())
    except OSError as error:
        raise unwritable(output, error) from None


def check_replaceable(output: str | Path, *, force: bool = False) -> Path:
    """Returns where `write` would write: links are followed, so that they are kept.

    Raises:
        UsageError: something else than an earlier report is there, or it cannot be read.
    """
    try:
        return replaceable(output, "an autofit report", _is_earlier, force=force)
    except OSError as error:
        raise unwritable(output, error) from None


def marked(page: str) -> str:
    """Returns a page with the mark of a report behind its first line, so that `write` may replace it."""
    at = len(_DOCTYPE) if page.lower().startswith(_DOCTYPE) else 0
    return f"{page[:at]}{MARK}{page[at:]}"


def _is_earlier(path: Path) -> bool:
    """Returns whether a file is empty or an earlier report."""
    head = head_of(path, 256)
    return not head or any(mark in head for mark in _MARKS)


def attached(found: SearchResult) -> dict[str, str]:
    """Returns the report of a search as text files, by file name."""
    report = assembled(of_result(found))
    return {f"autofit-report.{kind}": rendered(report, kind) for kind in FORMATS}
