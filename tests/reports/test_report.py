"""The record of a report: its rows by role, and its published JSON Schema."""

import json
from typing import Any

import pytest

from autofit.reports import sources
from autofit.reports.assemble import assembled
from autofit.reports.report import Report, to_json
from scripts.schemas import of_report
from tests.recorded import recorded_search


@pytest.fixture(scope="module")
def found() -> Report:
    return assembled(sources.of_result(recorded_search()))


def test_rows_are_found_by_rank_and_by_role(found: Report) -> None:
    assert [found.row(row.rank) for row in found.rows] == list(found.rows)
    assert found.recommended is not None
    assert found.recommended.role == "recommended"
    assert found.baseline is not None
    assert found.baseline.is_baseline
    bare = found.model_copy(update={"rows": ()})
    assert (bare.recommended, bare.baseline) == (None, None)


def test_json_gives_back_an_equal_report(found: Report) -> None:
    assert Report.model_validate_json(to_json(found)) == found
    assert json.loads(to_json(found))["schema"] == "autofit.report/1"


def test_a_report_has_what_the_schema_names_and_nothing_more(found: Report) -> None:
    schema = of_report()

    def check(value: Any, about: dict[str, Any]) -> None:
        about = schema["$defs"][about["$ref"].rpartition("/")[2]] if "$ref" in about else about
        if "properties" in about and isinstance(value, dict):
            assert set(about.get("required", [])) <= set(value) <= set(about["properties"])
            for name, each in value.items():
                check(each, about["properties"][name])
        for each in value if isinstance(value, list) and isinstance(about.get("items"), dict) else []:
            check(each, about["items"])

    check(json.loads(to_json(found)), schema)
    assert "schema" in schema["required"]
