"""Plugins: members of a family from other installed packages, found by their entry points.

A package adds a searcher with two lines in its `pyproject.toml`:

    [project.entry-points."autofit.searchers"]
    annealing = "my_package.annealing:Annealing"

The groups are `autofit.strategies`, `autofit.devices`, `autofit.exporters`, `autofit.searchers`, `autofit.estimators`,
`autofit.trackers` and `autofit.findings`; each entry point names a class that derives from the base class of its
family. It is loaded when the members are first used, not when autofit is imported, so that the package may import
autofit.
"""

import inspect
import warnings
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar, cast

Member = TypeVar("Member")


def plugins(family: str, base: type[Any], known: Iterable[type[Member]], label: str = "") -> list[type[Member]]:
    """Returns the classes that installed packages add to a family, sorted by the name of their entry points.

    A class that cannot be used is left out with a warning, since one broken package must not prevent tuning.

    Args:
        family: name of the family's package, such as "searchers".
        base: base class of the members.
        known: the members in autofit itself.
        label: class attribute that identifies a member; "" if members have no such attribute.
    """
    taken: set[Any] = {getattr(member, label) for member in known if label}
    found: list[type[Member]] = []
    for entry in sorted(_entries().select(group=f"autofit.{family}"), key=lambda entry: (entry.name, entry.value)):
        try:
            member = _loaded(entry, base)
            name = getattr(member, label) if label else None
            if name in taken:
                raise ValueError(f"another member of the family has the {label} {name!r}")
        except Exception as error:  # noqa: BLE001  # importing foreign code may raise any exception
            package = "that provides it" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
            warnings.warn(
                f"the package {package} adds {entry.name!r} ({entry.value}) to autofit.{family}, which cannot "
                f"be used: {type(error).__name__}: {error}. It is left out; update the package or uninstall it.",
                RuntimeWarning,
                stacklevel=2,
            )
            continue
        taken.add(name)
        found.append(member)
    return found


@cache
def _entries() -> EntryPoints:
    return cast(EntryPoints, entry_points())


def _loaded(entry: EntryPoint, base: type[Any]) -> type[Any]:
    member = entry.load()
    if not (isinstance(member, type) and issubclass(member, base)):
        raise TypeError(f"found {member!r}; expected a class that derives from {base.__module__}.{base.__qualname__}")
    if inspect.isabstract(member):
        missing = ", ".join(sorted(getattr(member, "__abstractmethods__", ())))
        raise TypeError(f"{member.__qualname__} has no {missing}")
    return member
