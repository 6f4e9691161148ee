"""The report that is logged with a result is the report of that search."""

import json

from autofit.reports.attached import attached
from autofit.reports.markdown import MARK
from tests.recorded import recorded_search


def test_the_report_is_attached_in_each_format() -> None:
    result = recorded_search()
    files = attached(result)
    assert list(files) == ["autofit-report.html", "autofit-report.md", "autofit-report.json"]
    assert files["autofit-report.html"].lower().startswith("<!doctype html>")
    assert files["autofit-report.md"].startswith(MARK)
    report = json.loads(files["autofit-report.json"])
    assert report["title"] == "train.py:make_resnet"
    assert len(report["rows"]) == len({trial.plan for trial in result.trials})
