"""A record of a night as text, for the storage of the history and for the file of records that were set aside."""

import json
import re
from collections.abc import Sequence

from autofit.core.errors import StudyError
from autofit.nightly.records import NIGHT_SCHEMA, NightRecord
from autofit.study.records import STORED_LETTERS

_SHORT_LETTERS, _FEW = 500, 10
"""Maximum length and number of the texts of a record that would be longer than `STORED_LETTERS`."""
_HEAD = re.compile(r'\{"schema": ?"(autofit\.night/[0-9]{1,6})"')


def to_text(record: NightRecord) -> str:
    """Returns a record as JSON in ASCII. Of a record that is too long, the texts for people are shortened."""
    text = _dumped(record)
    return text if len(text) <= STORED_LETTERS else _dumped(_shortened(record))


def from_text(text: str) -> NightRecord | None:
    """Returns the record of a text; None if it cannot be read."""
    try:
        return NightRecord.model_validate_json(text)
    except ValueError:  # pydantic's ValidationError is one
        return None


def check_schema(schema: object, where: str) -> None:
    """Refuses records of a newer version.

    Args:
        schema: schema of the records, or the text of a record; others are accepted.
        where: where it was found.

    Raises:
        StudyError: it is newer than `NIGHT_SCHEMA`.
    """
    text = schema if isinstance(schema, str) else ""
    found = _HEAD.match(text)
    name = text if found is None else found[1]
    if name.startswith("autofit.night/") and name != NIGHT_SCHEMA:
        raise StudyError(
            f"{where} has records of the schema {name[:40]}; expected {NIGHT_SCHEMA}, which this version reads. It was "
            "not changed. Upgrade autofit, or choose another history."
        )


def _dumped(record: NightRecord) -> str:
    # Unpaired surrogates, as in the name of a file that is not UTF-8, are not valid JSON for other readers.
    text = json.dumps(record.model_dump(mode="json", by_alias=True), ensure_ascii=False)
    return json.dumps(json.loads(text.encode("utf-8", "replace")))


def _shortened(record: NightRecord) -> NightRecord:
    verdict = record.verdict
    texts = {
        "reason": verdict.reason[:_SHORT_LETTERS],
        "changed": _short(verdict.changed),
        "bisect": _short(verdict.bisect),
    }
    return record.model_copy(
        update={
            "verdict": verdict.model_copy(update=texts),
            "tuned": record.tuned[:_SHORT_LETTERS],
            "notes": (*_short(record.notes), "the texts of this record were shortened"),
        }
    )


def _short(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(text[:_SHORT_LETTERS] for text in texts[:_FEW])
