"""The result of `reach`: facts by their path, and the names that training changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Name(NamedTuple):
    """The name of an attribute or a global.

    Attributes:
        owner: the class of the object that has the attribute. None for a global or an attribute of a module.
        name: the name.
    """

    owner: type | None
    name: str


class Fact(NamedTuple):
    """One recorded fact.

    Attributes:
        kind: "code" or "attributes".
        text: the text that is compared.
        through: the attributes and globals on the path to it.
    """

    kind: str
    text: str
    through: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Changing:
    """The names that the code of a step assigns.

    Attributes:
        anywhere: globals, and attributes that functions assign, of any object.
        owned: attributes that methods assign, with the classes of the methods.
    """

    anywhere: frozenset[str]
    owned: Mapping[str, tuple[type, ...]]

    def covers(self, through: tuple[Name, ...]) -> bool:
        """Returns whether one of these names is assigned."""
        return any(self._assigned(each) for each in through)

    def _assigned(self, each: Name) -> bool:
        if each.name in self.anywhere:
            return True
        classes, owner = self.owned.get(each.name, ()), each.owner
        if owner is None:
            return bool(classes)
        return any(issubclass(owner, kind) or issubclass(kind, owner) for kind in classes)


@dataclass(frozen=True, slots=True)
class ReachedFacts:
    """The recorded facts, by path from the objects passed in."""

    found: Mapping[str, Fact]

    def stable(self, before: "ReachedFacts") -> "ReachedFacts":
        """Returns the facts that are equal in `before`."""
        return ReachedFacts({path: fact for path, fact in self.found.items() if before.found.get(path) == fact})

    def lines(self, kind: str) -> list[str]:
        """Returns the facts of a kind, one per line."""
        return [f"{path}={fact.text}" for path, fact in sorted(self.found.items()) if fact.kind == kind]
