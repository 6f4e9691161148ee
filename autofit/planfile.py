"""The plan file: a Recommendation as YAML that a person can read, compare and keep under version control."""

import json
import os
import re
import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from autofit import strict_yaml
from autofit.core.errors import PlanFileError
from autofit.core.files import write_atomically
from autofit.core.printable import one_line
from autofit.core.recommendation import PLAN_SCHEMA, Candidate, Recommendation
from autofit.core.soundness import problems
from autofit.core.wording import describe_outcome, describe_plan

SCHEMA_FILE = Path(__file__).parent / "core" / "plan.schema.json"
"""The published JSON Schema, made by `schema_text`."""

MAX_BYTES = 2**20
"""Most bytes of a plan file. A record of this length has fewer values than `strict_yaml` reads."""
_ROOM_RATIO = 0.95
"""Alternatives are left out until the file is estimated to take this share of `MAX_BYTES`; their lengths differ."""
_SHOWN_ERRORS = 3
_SHOWN_LETTERS = 200
_SCHEMA_LINE = re.compile(rb"^schema: *['\"]?autofit\.plan/", re.MULTILINE)
_AGAIN = "Make the file again with `autofit tune ... -o FILE`, or correct it."


def dumps(recommendation: Recommendation) -> str:
    """Returns the plan file's text: a comment for people, then the whole record. `load` gives back an equal record."""
    full = recommendation.model_dump(mode="json", by_alias=True)
    changed = recommendation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return _comment(recommendation) + strict_yaml.dump(_without_empty(full, changed))


def save(recommendation: Recommendation, path: str | Path, *, force: bool = False) -> None:
    """Writes the plan file, all of it or nothing; an earlier plan file at `path` is replaced and its mode is kept.

    Where the alternatives do not fit into the file, the last that are not on the Pareto front are left out, and a
    caveat says so.

    Args:
        recommendation: what is written.
        path: where to; links are followed.
        force: whether any other file may be replaced too.

    Raises:
        PlanFileError: `path` holds something else, or cannot be written.
    """
    path = Path(path)
    data = dumps(recommendation).encode()
    fewer = recommendation.alternatives
    while len(data) > MAX_BYTES and fewer:
        fewer = _fewer(fewer, _ROOM_RATIO * MAX_BYTES / len(data))
        data = dumps(_with(recommendation, fewer)).encode()
    if len(data) > MAX_BYTES:
        raise PlanFileError(
            f"the plan file would be {len(data)} bytes without alternatives; expected at most {MAX_BYTES}, which is "
            "what is read back. Shorten its caveats."
        )
    try:
        write_atomically(check_replaceable(path, force=force), data)
    except OSError as error:
        raise PlanFileError(
            f"{path} could not be written: found {error.strerror or error}; expected a directory that exists and has "
            "space. Choose another path."
        ) from error


def _fewer(candidates: tuple[Candidate, ...], share: float) -> tuple[Candidate, ...]:
    """Returns a share of the candidates, in their order: those on the Pareto front first, then the first ones."""
    first = sorted(range(len(candidates)), key=lambda at: (not candidates[at].on_front, at))
    return tuple(candidates[at] for at in sorted(first[: int(share * len(candidates))]))


def _with(recommendation: Recommendation, alternatives: tuple[Candidate, ...]) -> Recommendation:
    gone = len(recommendation.alternatives) - len(alternatives)
    caveat = f"{gone} of {len(recommendation.alternatives)} alternatives are left out of this file; the study has them"
    return recommendation.model_copy(
        update={"alternatives": alternatives, "caveats": (*recommendation.caveats, caveat)}
    )


def check_replaceable(path: str | Path, *, force: bool = False) -> Path:
    """Returns where `save` would write: links are followed, so that they are kept.

    Raises:
        PlanFileError: something else than an earlier plan file, which may be damaged, is there.
        OSError: the file there cannot be read.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() and (force or _is_earlier(target))):
        instead = ", move that file away, or replace it with --force" if target.is_file() else ""
        raise PlanFileError(
            f"{path} was not written: found {'a file' if instead else 'something'} there that is not an autofit plan; "
            f"expected none, or an earlier plan. Choose another path{instead}."
        )
    return target


def load(path: str | Path) -> Recommendation:
    """Returns the recommendation of a plan file.

    Raises:
        PlanFileError: the file is missing, damaged, too large, or of another schema.
    """
    data = _parse(_read(Path(path)), path)
    if not isinstance(data, dict):
        raise PlanFileError(f"{path}: found {_kind(data)}; expected a mapping that begins with `schema`. {_AGAIN}")
    _check_schema(data, path)
    try:
        recommendation = Recommendation.model_validate(data)
    except ValidationError as error:
        raise PlanFileError(f"{path} is not valid {PLAN_SCHEMA}: {_explained(error)}. {_AGAIN}") from error
    for problem in problems(recommendation):
        raise PlanFileError(f"{path}: {problem}. {_AGAIN}")
    return recommendation


def schema_text() -> str:
    """Returns the JSON Schema (draft 2020-12) of the plan file, as it is published in `SCHEMA_FILE`.

    After a change of the records: `python -c "from autofit import planfile as p;
    p.SCHEMA_FILE.write_text(p.schema_text())"`.
    """
    schema = Recommendation.model_json_schema(by_alias=True)
    # A file without `schema` is refused; the model has a default only so that code need not name it.
    schema["required"] = ["schema", *schema["required"]]
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


def _comment(recommendation: Recommendation) -> str:
    r = recommendation
    lines = [
        "An autofit plan: made by `autofit tune`. `autofit show FILE` explains it, `autofit.load(FILE)` applies it.",
        f"{describe_plan(r.plan, r.baseline.plan)}{f': {r.gain}' if r.gain else ''}",
        f"instead of {describe_plan(r.baseline.plan, r.baseline.plan)}: {describe_outcome(r.baseline.outcome)}",
    ]
    return "".join(f"# {one_line(line)}\n" for line in lines)


def _without_empty(full: Any, changed: Any) -> Any:
    """Returns `full` without the entries that are empty and empty by default; `changed` is `full` without defaults."""
    if isinstance(full, dict):
        return {
            key: _without_empty(value, changed.get(key, value))
            for key, value in full.items()
            if key in changed or value not in (None, "", [], {})
        }
    if isinstance(full, list):
        return [_without_empty(value, mine) for value, mine in zip(full, changed, strict=True)]
    return full


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PlanFileError(
            f"cannot read the plan file {path}: found {error.strerror or error}; expected a file that `autofit tune` "
            "or `fit.save` wrote. Check the path."
        ) from error
    if len(data) > MAX_BYTES:
        raise PlanFileError(f"{path}: found more than {MAX_BYTES} bytes; expected a plan file, which is smaller.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{path}: found bytes that are not UTF-8; expected YAML text. {_AGAIN}") from error


def _parse(text: str, path: str | Path) -> Any:
    try:
        return strict_yaml.load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an escape above U+10FFFF
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        problem = _short(getattr(error, "problem", None) or str(error).partition("\n")[0])
        raise PlanFileError(f"{path} is not readable as YAML{line}: {problem}. {_AGAIN}") from error


def _check_schema(data: dict[Any, Any], path: str | Path) -> None:
    found = data.get("schema")
    if found == PLAN_SCHEMA:
        return
    if found is None:
        raise PlanFileError(f"{path}: found no `schema`; expected `schema: {PLAN_SCHEMA}`. {_AGAIN}")
    if isinstance(found, str) and re.fullmatch(r"autofit\.plan/[1-9][0-9]{0,5}", found):
        raise PlanFileError(
            f"{path}: found schema {found}, made by a newer autofit; expected {PLAN_SCHEMA}. Upgrade autofit, or make "
            "the file again with this version."
        )
    raise PlanFileError(f"{path}: found schema {reprlib.repr(found)}; expected {PLAN_SCHEMA}. {_AGAIN}")


def _explained(error: ValidationError) -> str:
    """Returns the first problems as "place: found, expected"."""
    texts = []
    errors = error.errors(include_url=False, include_context=False)
    for problem in errors[:_SHOWN_ERRORS]:
        place = _short(".".join(map(str, problem["loc"]))) or "the file"
        found = "nothing" if problem["type"] == "missing" else reprlib.repr(problem["input"])
        texts.append(f"{place}: found {found}; expected: {problem['msg']}")
    more = len(errors) - _SHOWN_ERRORS
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _kind(data: object) -> str:
    return "nothing" if data is None else f"a {type(data).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]} ..."


def _is_earlier(path: Path) -> bool:
    """Returns whether a file is empty or an earlier plan, which may be damaged."""
    with path.open("rb") as file:
        head = file.read(2**16)
    return not head or _SCHEMA_LINE.search(head) is not None
