"""Writes the published JSON Schemas (draft 2020-12) of autofit's files. Run it after a change to their records.

python -m scripts.schemas
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from autofit.core.answer import Answer
from autofit.doctor.diagnosis import Diagnosis
from autofit.nightly.jobs import Document
from autofit.nightly.records import NightResult
from autofit.reports.report import Report

ROOT = Path(__file__).parents[1] / "autofit"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def of_plan() -> dict[str, Any]:
    """Returns the schema of a plan file."""
    schema = Answer.model_json_schema(by_alias=True)
    # A file without `schema` is rejected. The model has a default only for use in code.
    kinds = schema["$defs"]
    record = kinds.pop(Answer.__name__)
    record["required"] = ["schema", *record["required"]]
    whole = {"$schema": DRAFT, "$defs": kinds, **record}
    # The plan for evaluation has the schema of the whole document.
    found: dict[str, Any] = json.loads(json.dumps(whole).replace(schema["$ref"], "#"))
    return found


def of_report() -> dict[str, Any]:
    """Returns the schema of a report as JSON."""
    return {"$schema": DRAFT, **Report.model_json_schema(by_alias=True, mode="serialization")}


def of_jobs() -> dict[str, Any]:
    """Returns the schema of a jobs file."""
    schema = Document.model_json_schema(by_alias=True)
    schema["$defs"]["Job"]["required"].remove("workload")  # it may be one of the defaults
    return {"$schema": DRAFT, **schema}


def of_night() -> dict[str, Any]:
    """Returns the schema of a night as JSON."""
    return _written(NightResult)


def of_diagnosis() -> dict[str, Any]:
    """Returns the schema of a diagnosis as JSON."""
    return _written(Diagnosis)


def _written(record: type[BaseModel]) -> dict[str, Any]:
    """Returns the schema of a document that has all fields of its records, those with a default too."""
    schema = record.model_json_schema(by_alias=True, mode="serialization")
    for about in [schema, *schema["$defs"].values()]:
        if "properties" in about:
            about["required"] = list(about["properties"])
    return {"$schema": DRAFT, **schema}


SCHEMAS: Mapping[Path, dict[str, Any]] = {
    ROOT / "core" / "plan.schema.json": of_plan(),
    ROOT / "reports" / "report.schema.json": of_report(),
    ROOT / "doctor" / "doctor.schema.json": of_diagnosis(),
    ROOT / "nightly" / "jobs.schema.json": of_jobs(),
    ROOT / "nightly" / "nightly.schema.json": of_night(),
}
"""Each published file with what it must contain."""


if __name__ == "__main__":
    for path, schema in SCHEMAS.items():
        path.write_text(json.dumps(schema, indent=2) + "\n", encoding="utf-8")
