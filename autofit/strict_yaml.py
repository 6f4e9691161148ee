"""YAML that holds the values of JSON and nothing more: as a person reads it, and safe to read from a stranger."""

import re
import reprlib
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import yaml

MAX_NODES = 100_000
"""Most values in a text that is read, containers included; each takes about 30 us."""
_MOST_DIGITS = 19


def dump(data: Any) -> str:
    """Returns `data` as YAML that any YAML reader understands; `load` gives back equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=96, allow_unicode=True)


def load(text: str) -> Any:
    """Returns the data of a YAML text.

    Raises:
        yaml.YAMLError: it is not valid YAML, or has an alias, a tag, a key twice, or more than `MAX_NODES` values.
        ValueError: a text has an escape above U+10FFFF.
        RecursionError: it is nested too deeply.
    """
    return yaml.load(text, Loader=_Loader)


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

    Refuses aliases, which can make a small file large, and duplicate keys, of which readers take one or the other.
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
            raise _refused(f"more than {MAX_NODES} values", "at most that many", event)
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
