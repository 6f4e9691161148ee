"""A night as JSON: the result itself with the name of its schema. The schema is published beside this file."""

import json
from pathlib import Path
from typing import Any

from autofit.nightly.outputs.facts import History
from autofit.nightly.result import NightResult

SCHEMA = "autofit.nightly/1"
SCHEMA_FILE = Path(__file__).parent / "nightly.schema.json"
"""The published JSON Schema, made by `schema_text`."""


def rendered(night: NightResult, history: History) -> str:
    """Returns the night as JSON text, as the published schema describes it. The history is not part of it.

    Numbers that JSON does not have are null, and unpaired surrogates are "?".
    """
    text = json.dumps(night.model_dump(mode="json", by_alias=True))
    document = {"schema": SCHEMA, **json.loads(text, parse_constant=lambda name: None)}
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="replace").decode() + "\n"


def schema_text() -> str:
    """Returns the JSON Schema (draft 2020-12) of a night as JSON, as it is published in `SCHEMA_FILE`.

    After a change of the records: `python -c "from autofit.nightly.outputs import night_json as n;
    n.SCHEMA_FILE.write_text(n.schema_text())"`.
    """
    schema = NightResult.model_json_schema(by_alias=True, mode="serialization")
    for about in [schema, *schema["$defs"].values()]:
        _all_required(about)
    schema["properties"] = {"schema": {"const": SCHEMA, "title": "Schema", "type": "string"}, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


def _all_required(about: dict[str, Any]) -> None:
    """Names every field of a record as required: a document has all of them, those with a default too."""
    if "properties" in about:
        about["required"] = list(about["properties"])
