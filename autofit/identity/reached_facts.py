"""What `reach` finds: facts by their path, and what of it a training changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Name(NamedTuple):
    """The name of an attribute or a global.

    Attributes:
        owner: the class of the object whose attribute it is; None of a global, or of an attribute of a module.
        name: of it.
    """

    owner: type | None
    name: str


class Fact(NamedTuple):
    """One thing that is known.

    Attributes:
        kind: "code" or "attributes".
        text: what counts.
        through: the attributes and globals that led to it.
    """

    kind: str
    text: str
    through: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Changing:
    """What the code of a step assigns.

    Attributes:
        anywhere: attributes assigned by functions, of whichever object, and globals.
        owned: attributes assigned by methods, by the class that has the method.
    """

    anywhere: frozenset[str]
    owned: Mapping[str, tuple[type, ...]]

    def covers(self, through: tuple[Name, ...]) -> bool:
        """Says whether one of these names is assigned."""
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
    """What was found, by its path from the objects that were given."""

    found: Mapping[str, Fact]

    def stable(self, before: "ReachedFacts") -> "ReachedFacts":
        """Returns those that were the same before."""
        return ReachedFacts({path: fact for path, fact in self.found.items() if before.found.get(path) == fact})

    def lines(self, kind: str) -> list[str]:
        """Returns those of a kind, one a line."""
        return [f"{path}={fact.text}" for path, fact in sorted(self.found.items()) if fact.kind == kind]
