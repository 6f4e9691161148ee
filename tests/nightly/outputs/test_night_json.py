"""A night as JSON: everything that was found, as the published schema says."""

import json
from typing import Any

from autofit.nightly.outputs import night_json
from autofit.nightly.outputs.night_json import SCHEMA, rendered, schema_text
from autofit.nightly.result import NightResult
from tests.nightly import samples

YEAR = samples.result(samples.year())


def test_json_gives_back_an_equal_night() -> None:
    document = json.loads(rendered(YEAR, {}))
    assert document.pop("schema") == SCHEMA
    assert NightResult.model_validate(document) == YEAR


def test_the_published_schema_is_that_of_the_records() -> None:
    published = json.loads(night_json.SCHEMA_FILE.read_text())
    assert published == json.loads(schema_text()), f"renew it: {schema_text.__doc__}"


def test_a_night_has_what_the_schema_names_and_nothing_more() -> None:
    schema = json.loads(night_json.SCHEMA_FILE.read_text())
    seen = set[str]()

    def check(value: Any, about: dict[str, Any]) -> None:
        if "$ref" in about:
            seen.add(name := about["$ref"].rpartition("/")[2])
            about = schema["$defs"][name]
        options = [one for one in about.get("anyOf", ()) if (value is None) == (one.get("type") == "null")]
        if options:
            check(value, options[0])
        if "properties" in about:
            assert set(about["required"]) == set(value) == set(about["properties"])
            assert about["additionalProperties"] is False
            for name, each in value.items():
                check(each, about["properties"][name])
        for each in value if isinstance(value, list) and isinstance(about.get("items"), dict) else []:
            check(each, about["items"])

    check(json.loads(rendered(YEAR, {})), schema)
    assert {"NightRecord", "Verdict", "Figures", "HistorySegment", "Environment", "Ratio", "Plan"} <= seen


def test_values_that_json_does_not_have_are_replaced() -> None:
    night = samples.hostile_result()
    one = night.records[0]
    verdict = one.verdict.model_copy(update={"expected_per_s": float("nan"), "high_per_s": float("inf")})
    text = rendered(night.model_copy(update={"records": (one.model_copy(update={"verdict": verdict}),)}), {})
    text.encode("utf-8")
    found = json.loads(text, parse_constant=lambda name: f"not JSON: {name}")["records"][0]
    assert (found["verdict"]["expected_per_s"], found["verdict"]["high_per_s"]) == (None, None)
    assert found["job"].startswith("</script><script>alert(1)</script>")
