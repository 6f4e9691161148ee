"""YAML restricted to JSON values: readable for people, and safe to load from an untrusted source."""

import re
import reprlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar, TypeAlias

import yaml

MAX_NODES = 100_000
"""Maximum number of values in a text, containers included. Each takes about 30 us to read."""
_MOST_DIGITS = 19
UNREADABLE = (yaml.YAMLError, ValueError, OverflowError, RecursionError)
"""What `load` raises."""

Place: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead to a value: `("jobs", 0, "name")`. `()` is the whole text."""


def dump(data: Any) -> str:
    """Returns `data` as YAML for any YAML reader. `load` returns equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True)


def load(text: str) -> Any:
    """Returns the data of a YAML text.

    Raises:
        yaml.YAMLError: the text is not valid YAML, or has an alias, a tag, a duplicate key, or more than `MAX_NODES`
            values.
        ValueError, OverflowError: a string has an escape above U+10FFFF.
        RecursionError: the text is nested too deeply.
    """
    return yaml.load(text, Loader=_StrictLoader)


def load_with_lines(text: str) -> tuple[Any, dict[Place, int]]:
    """Returns the data of a YAML text, and the line of each value, counted from 1.

    The line of a value in a mapping is that of its key.

    Raises:
        yaml.YAMLError, ValueError, OverflowError, RecursionError: as in `load`.
    """
    loader = _StrictLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:  # an empty text
            return None, {(): 1}
        return loader.construct_document(root), dict(_lines(root, (), root))
    finally:
        loader.dispose()


def _lines(node: yaml.Node, place: Place, marked: yaml.Node) -> Iterator[tuple[Place, int]]:
    """Yields the line of a value, which is where `marked` begins, and of the values in it."""
    yield place, marked.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _lines(value, (*place, key.value), key)
    elif isinstance(node, yaml.SequenceNode):
        for at, item in enumerate(node.value):
            yield from _lines(item, (*place, at), item)


class _Dumper(yaml.SafeDumper):
    """Writes lists of numbers on one line and does not use aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # YAML converts Unicode line breaks to plain ones unless they are escaped.
        style = '"' if any(letter in data for letter in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        numbers = all(isinstance(item, int | float) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=numbers)


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data))


class _StrictLoader(yaml.SafeLoader):
    """Reads JSON values only: no tags, dates, binary data, sets or base-60 numbers.

    Rejects aliases, which can expand a small file to a large one, and duplicate keys, which readers handle differently.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012  # declared by the base class
    yaml_constructors: ClassVar[dict[Any, Any]] = {}
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # no types
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.AliasEvent):
            raise _rejected("an alias", "values written out", event)
        if tag is not None:
            raise _rejected(f"the tag {reprlib.repr(tag)}", "plain values without tags", event)
        if self.nodes > MAX_NODES:
            raise _rejected(f"more than {MAX_NODES} values", "at most that many", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _rejected("a list or a mapping as a key", "a string", key)
            if key.value in seen:
                raise _rejected(f"the key {reprlib.repr(key.value)} twice", "unique keys", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _rejected(found: str, expected: str, at: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, f"found {found}; expected {expected}", at.start_mark)


def _integer(node: yaml.ScalarNode) -> int:
    digits = len(node.value.lstrip("-"))
    if digits > _MOST_DIGITS:
        raise _rejected(f"a number of {digits} digits", f"at most {_MOST_DIGITS}", node)
    return int(node.value)


_YAML = "tag:yaml.org,2002:"
_StrictLoader.add_implicit_resolver(f"{_YAML}null", re.compile(r"(?:null|Null|NULL|~|)\Z"), ["n", "N", "~", ""])
_StrictLoader.add_implicit_resolver(f"{_YAML}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))
_StrictLoader.add_implicit_resolver(f"{_YAML}int", re.compile(r"-?(?:0|[1-9][0-9]*)\Z"), list("-0123456789"))
_StrictLoader.add_implicit_resolver(
    f"{_YAML}float", re.compile(r"-?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?\Z|-?\.inf\Z|\.nan\Z"), list("-.0123456789")
)
# Each pattern is a subset of what YAML 1.1 reads as that type, so that any YAML writer quotes strings that match it.
_CONSTRUCTORS: dict[str, Callable[[Any, Any], Any]] = {
    "null": lambda loader, node: None,
    "bool": lambda loader, node: node.value.lower() == "true",
    "int": lambda loader, node: _integer(node),
    "float": lambda loader, node: float(node.value.replace(".inf", "inf").replace(".nan", "nan")),
    "str": _StrictLoader.construct_scalar,
    "seq": _StrictLoader.construct_yaml_seq,
    "map": _StrictLoader.construct_yaml_map,
}
for _tag, _construct in _CONSTRUCTORS.items():
    _StrictLoader.add_constructor(f"{_YAML}{_tag}", _construct)
