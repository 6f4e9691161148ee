"""What a function holds: the variables of the functions around it, its defaults, and the globals that its code names.

Of globals those count that the function's code, or code inside it, names: in its own module, and in the user's modules
that it names or imports. Nothing else of a module is looked at, and nothing in the modules of libraries.
"""

import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autofit.guard.origin import Origin, origin_of


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Returns the names that code looks up beyond its own variables.

    These are globals and attributes, which are told apart only by whether there is such a global.
    """
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in names_in(value)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def code_origin(function: FunctionType) -> Origin:
    """Returns whose code a function is; a wrapper is of the module that wrapped."""
    return origin_of(function.__globals__.get("__name__"))


def namespaces(function: FunctionType) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Yields the user's namespaces that a function's code reads or writes: name, namespace and names in it."""
    if code_origin(function) is not Origin.USER:
        return
    own, names = function.__globals__, names_in(function.__code__)
    yield str(own.get("__name__", "globals")), own, names
    todo = [module for name in names for module in ([own[name]] if name in own else _imported(name, own))]
    seen = {id(own)}
    while todo:
        module = todo.pop(0)
        if (
            isinstance(module, ModuleType)
            and origin_of(module.__name__) is Origin.USER
            and id(vars(module)) not in seen
        ):
            seen.add(id(vars(module)))
            inside = tuple(name for name in names if name in vars(module))
            yield module.__name__, vars(module), inside
            todo += [vars(module)[name] for name in inside]


def _imported(name: str, own: dict[str, Any]) -> list[ModuleType]:
    """Returns the modules that an `import` inside a function may find by a name, of those imported before."""
    package = str(own.get("__package__") or "").split(".")
    places = (".".join([*package[:depth], name]) for depth in range(len(package) + 1))
    return [sys.modules[place] for place in places if place in sys.modules]
