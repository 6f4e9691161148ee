"""The plan file: a Recommendation as YAML that a person can read, compare and keep under version control."""

import json
import os
import re
import reprlib
import secrets
from collections.abc import Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from autofit.core.errors import PlanFileError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.recommendation import PLAN_SCHEMA, Recommendation
from autofit.core.summary import describe_outcome, describe_plan

SCHEMA_FILE = Path(__file__).parent / "core" / "plan.schema.json"
"""The published JSON Schema, made by `schema_text`."""

MAX_BYTES = 2**20
_SHOWN_ERRORS = 3
_SCHEMA_LINE = re.compile(rb"^schema: *['\"]?autofit\.plan/", re.MULTILINE)
_AGAIN = "Make the file again with `autofit tune ... -o FILE`, or correct it."


def dumps(recommendation: Recommendation) -> str:
    """Returns the plan file's text: a comment for people, then the whole record. `load` gives back an equal record."""
    full = recommendation.model_dump(mode="json", by_alias=True)
    told = recommendation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = yaml.dump(_without_empty(full, told), Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True)
    return _comment(recommendation) + text


def save(recommendation: Recommendation, path: str | Path) -> None:
    """Writes the plan file, all of it or nothing; an earlier plan file at `path` is replaced.

    Raises:
        PlanFileError: `path` holds something else, or cannot be written.
    """
    path = Path(path)
    data = dumps(recommendation).encode()
    if len(data) > MAX_BYTES:
        raise PlanFileError(
            f"the plan file would be {len(data)} bytes; expected at most {MAX_BYTES}, which is what is read back. "
            "Save it with fewer alternatives."
        )
    try:
        _replace(check_replaceable(path), data)
    except OSError as error:
        raise PlanFileError(
            f"{path} could not be written: found {error.strerror or error}; expected a directory that exists and has "
            "space. Choose another path."
        ) from error


def check_replaceable(path: str | Path) -> Path:
    """Returns where `save` would write: links are followed, so that they are kept.

    Raises:
        PlanFileError: something else than an earlier plan file, which may be damaged, is there.
        OSError: the file there cannot be read.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not _may_replace(target):
        raise PlanFileError(
            f"{path} was not written: found a file there that is no autofit plan; expected none, or an earlier "
            "plan. Choose another path, or move that file away."
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
        raise PlanFileError(f"{path} is no {PLAN_SCHEMA}: {_explained(error)}. {_AGAIN}") from error
    _check_batches(recommendation, path)
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
    return "".join(f"# {_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    """Returns `text` without line breaks and control characters, which would end a comment."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _without_empty(full: Any, told: Any) -> Any:
    """Returns `full` without the entries that are empty and empty by default; `told` is `full` without defaults."""
    if isinstance(full, dict):
        return {
            key: _without_empty(value, told.get(key, value))
            for key, value in full.items()
            if key in told or value not in (None, "", [], {})
        }
    if isinstance(full, list):
        return [_without_empty(value, mine) for value, mine in zip(full, told, strict=True)]
    return full


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # YAML folds Unicode's own line breaks into plain ones, except where they are escaped.
        style = '"' if any(letter in data for letter in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        numbers = all(isinstance(item, int | float) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numbers)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data))


class _Loader(yaml.SafeLoader):
    """Refuses what can make a small file large or say two things: aliases and duplicate keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "found an alias; expected values written out", None)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"found the key {key.value!r} twice; expected it once", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


# Dates stay text: a record has none, and one that lost its quotes in an editor is still the same text.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


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
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise PlanFileError(f"{path} is not readable as YAML{line}: {problem}. {_AGAIN}") from error


def _check_schema(data: dict[Any, Any], path: str | Path) -> None:
    found = data.get("schema")
    if found == PLAN_SCHEMA:
        return
    if found is None:
        raise PlanFileError(f"{path}: found no `schema`; expected `schema: {PLAN_SCHEMA}`. {_AGAIN}")
    if re.fullmatch(r"autofit\.plan/[0-9]+", str(found)):
        raise PlanFileError(
            f"{path}: found schema {found}, made by a newer autofit; expected {PLAN_SCHEMA}. Upgrade autofit, or make "
            "the file again with this version."
        )
    raise PlanFileError(f"{path}: found schema {reprlib.repr(found)}; expected {PLAN_SCHEMA}. {_AGAIN}")


def _check_batches(recommendation: Recommendation, path: str | Path) -> None:
    """Checks what `Plan` computes with; other knobs are checked by the strategies that own them."""
    r = recommendation
    for plan in (r.plan, r.baseline.plan, *(other.plan for other in r.alternatives)):
        for knob in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS):
            value = plan.values.get(knob, 1 if knob == ACCUMULATION_STEPS else None)
            if type(value) is not int or value < 1:
                raise PlanFileError(
                    f"{path}: found {knob}: {reprlib.repr(value)}; expected a whole number of at least 1. {_AGAIN}"
                )


def _explained(error: ValidationError) -> str:
    """Returns the first problems as "place: found, expected"."""
    texts = []
    problems = error.errors(include_url=False, include_context=False)
    for problem in problems[:_SHOWN_ERRORS]:
        place = ".".join(map(str, problem["loc"])) or "the file"
        found = "nothing" if problem["type"] == "missing" else reprlib.repr(problem["input"])
        texts.append(f"{place}: found {found}; expected: {problem['msg']}")
    more = len(problems) - _SHOWN_ERRORS
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _kind(data: object) -> str:
    return "nothing" if data is None else f"a {type(data).__name__}"


def _may_replace(path: Path) -> bool:
    """Says whether a file is an earlier plan, also a damaged one, or empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2**16)
    return not head or _SCHEMA_LINE.search(head) is not None


def _replace(target: Path, data: bytes) -> None:
    """Replaces `target` in one step: whoever reads it sees the old file or the new one."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:  # Ctrl-C too leaves no draft behind
        with suppress(OSError):
            draft.unlink()
        raise
