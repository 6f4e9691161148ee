"""Attached: the files of a report that are logged to experiment trackers with the result of a search."""

from autofit.reports.assemble import assembled
from autofit.reports.sources import of_result
from autofit.reports.writing import FORMATS, rendered
from autofit.search.evidence import SearchResult


def attached(found: SearchResult) -> dict[str, str]:
    """Returns the report of a search as text files, by file name."""
    report = assembled(of_result(found))
    return {f"autofit-report.{kind}": rendered(report, kind) for kind in FORMATS}
