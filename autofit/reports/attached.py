"""Attached: the files of a report that are logged to experiment trackers with the result of a search."""

from autofit.reports.assemble import assembled
from autofit.reports.report import to_json
from autofit.reports.sources import of_result
from autofit.search.evidence import SearchResult


def attached(found: SearchResult) -> dict[str, str]:
    """Returns the report of a search as text files, by file name."""
    return {"autofit-report.json": to_json(assembled(of_result(found)))}
