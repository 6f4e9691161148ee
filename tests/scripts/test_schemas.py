"""The JSON Schemas that are published are those of the records."""

import json
from pathlib import Path

import pytest

from scripts.schemas import SCHEMAS


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_the_published_schema_is_that_of_the_records(path: Path) -> None:
    assert json.loads(path.read_text(encoding="utf-8")) == SCHEMAS[path], "renew it: python -m scripts.schemas"
