"""The globals that a function uses.

These are the globals named in the function's code, or in code nested in it: globals of its own module and of the user's
modules that it names or imports. Other globals of a module, and the modules of libraries, are not considered.
"""

import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autofit.guard.code_origin import Origin, origin_of


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Returns the names that code looks up, other than local variables.

    These are globals and attributes. A name is a global if the module has one of that name.
    """
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in names_in(value)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))


def code_origin(function: FunctionType) -> Origin:
    """Returns whose code a function is. A wrapper belongs to the module that defines it."""
    return origin_of(function.__globals__.get("__name__"))


def namespaces(function: FunctionType) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Yields the user's namespaces that a function reads or writes, each as name, namespace and names used."""
    if code_origin(function) is not Origin.USER:
        return
    module_globals, names = function.__globals__, names_in(function.__code__)
    yield str(module_globals.get("__name__", "globals")), module_globals, names
    todo = [
        module
        for name in names
        for module in ([module_globals[name]] if name in module_globals else _imported(name, module_globals))
    ]
    seen = {id(module_globals)}
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


def _imported(name: str, module_globals: dict[str, Any]) -> list[ModuleType]:
    """Returns the already imported modules that an `import` of this name inside a function may find."""
    package = str(module_globals.get("__package__") or "").split(".")
    places = (".".join([*package[:depth], name]) for depth in range(len(package) + 1))
    return [sys.modules[place] for place in places if place in sys.modules]
