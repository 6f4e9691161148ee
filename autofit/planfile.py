"""The plan file: a Recommendation as YAML that a person can read, compare and keep under version control."""

import json
import os
import re
import reprlib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import ValidationError

from autofit.core.errors import PlanFileError
from autofit.core.files import write_atomically
from autofit.core.printable import one_line
from autofit.core.recommendation import PLAN_SCHEMA, Candidate, Recommendation
from autofit.core.soundness import problems
from autofit.core.wording import describe_outcome, describe_plan

SCHEMA_FILE = Path(__file__).parent / "core" / "plan.schema.json"
"""The published JSON Schema, made by `schema_text`."""

MAX_BYTES = 2**20
MAX_NODES = 100_000
"""Values of a file that is read, containers included: a record of `MAX_BYTES` has fewer. Each takes about 30 us."""
_ROOM_RATIO = 0.95
"""Of `MAX_BYTES`: what alternatives are left out for, since their lengths differ."""
_SHOWN_ERRORS = 3
_SHOWN_LETTERS = 200
_MOST_DIGITS = 19
_SCHEMA_LINE = re.compile(rb"^schema: *['\"]?autofit\.plan/", re.MULTILINE)
_AGAIN = "Make the file again with `autofit tune ... -o FILE`, or correct it."


def dumps(recommendation: Recommendation) -> str:
    """Returns the plan file's text: a comment for people, then the whole record. `load` gives back an equal record."""
    full = recommendation.model_dump(mode="json", by_alias=True)
    told = recommendation.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = yaml.dump(_without_empty(full, told), Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True)
    return _comment(recommendation) + text


def save(recommendation: Recommendation, path: str | Path, *, force: bool = False) -> None:
    """Writes the plan file, all of it or nothing; an earlier plan file at `path` is replaced and its mode is kept.

    Of more alternatives than it may hold, the last that are not on the Pareto front are left out, which a caveat says.

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
    told = f"{gone} of {len(recommendation.alternatives)} alternatives are left out of this file; the study has them"
    return recommendation.model_copy(update={"alternatives": alternatives, "caveats": (*recommendation.caveats, told)})


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
            f"{path} was not written: found {'a file' if instead else 'something'} there that is no autofit plan; "
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
        raise PlanFileError(f"{path} is no {PLAN_SCHEMA}: {_explained(error)}. {_AGAIN}") from error
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
    """Reads JSON's values and nothing more: no tags, dates, binary, sets, or numbers to the base 60.

    Refuses what can make a small file large or say two things: aliases and duplicate keys.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012  # declared by the base class
    yaml_constructors: ClassVar[dict[Any, Any]] = {}
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # no types
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent):
            raise _refused("an alias", "values written out", event)
        if tag is not None:
            raise _refused(f"the tag {reprlib.repr(tag)}", "plain values without tags", event)
        if self.nodes > MAX_NODES:
            raise _refused(f"more than {MAX_NODES} values", "a plan file, which has fewer", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("a list or a mapping as a key", "a text", key)
            if key.value in seen:
                raise _refused(f"the key {reprlib.repr(key.value)} twice", "it once", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(found: str, expected: str, at: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, f"found {found}; expected {expected}", at.start_mark)


def _whole(node: yaml.ScalarNode) -> int:
    digits = len(node.value.lstrip("-"))
    if digits > _MOST_DIGITS:
        raise _refused(f"a number of {digits} digits", f"at most {_MOST_DIGITS}", node)
    return int(node.value)


_YAML = "tag:yaml.org,2002:"
_Loader.add_implicit_resolver(f"{_YAML}null", re.compile(r"(?:null|Null|NULL|~|)\Z"), ["n", "N", "~", ""])
_Loader.add_implicit_resolver(f"{_YAML}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_YAML}int", re.compile(r"-?(?:0|[1-9][0-9]*)\Z"), list("-0123456789"))
_Loader.add_implicit_resolver(
    f"{_YAML}float", re.compile(r"-?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?\Z|-?\.inf\Z|\.nan\Z"), list("-.0123456789")
)
# Each is a part of what YAML 1.1 reads as that type, so that any YAML writer quotes the texts that look like one.
_CONSTRUCTORS: dict[str, Callable[[Any, Any], Any]] = {
    "null": lambda loader, node: None,
    "bool": lambda loader, node: node.value.lower() == "true",
    "int": lambda loader, node: _whole(node),
    "float": lambda loader, node: float(node.value.replace(".inf", "inf").replace(".nan", "nan")),
    "str": _Loader.construct_scalar,
    "seq": _Loader.construct_yaml_seq,
    "map": _Loader.construct_yaml_map,
}
for _tag, _construct in _CONSTRUCTORS.items():
    _Loader.add_constructor(f"{_YAML}{_tag}", _construct)


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
    """Says whether a file is an earlier plan, also a damaged one, or empty."""
    with path.open("rb") as file:
        head = file.read(2**16)
    return not head or _SCHEMA_LINE.search(head) is not None
