"""Finds and calls the user's `make_workload` from `train.py:make_workload` or `package.module:make_workload`.

This executes the user's file, only in the process that probes.
"""

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from torch import nn

from autofit.core.briefing import Options
from autofit.core.errors import UsageError, UserCodeError, WorkloadError
from autofit.core.printable import redacted
from autofit.core.wording import a_type
from autofit.workloads.workload import Workload

DEFAULT_NAME = "make_workload"
LOADED = "autofit_target"
"""Name of the module that the file of a target becomes."""
_Record = TypeVar("_Record", bound=BaseModel)


def make(target: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Calls the factory that `target` names and returns the arguments of `autofit.tune`.

    Args:
        target: `path/to/file.py:function` or `package.module:function`. The function defaults to `make_workload`.
        arguments: keyword arguments for the function.

    Raises:
        UsageError: the file, module or function does not exist.
        UserCodeError: the file or the function raised. The user's traceback is attached.
        WorkloadError: the function did not return a workload.
    """
    # The last colon separates, so that a Windows drive letter stays with its path.
    where, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        where, name = target, DEFAULT_NAME
    if not where:
        raise UsageError(f"{target!r} has no file or module name; expected for example train.py:make_workload.")
    module = _load(where)
    factory = getattr(module, name, None)
    if not callable(factory):
        near = get_close_matches(name, [n for n in vars(module) if callable(getattr(module, n))], n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else " Define it there, or name another function."
        raise UsageError(f"{where} has no function {name!r}.{hint}")
    with _users_code(target):
        made = factory(**dict(arguments or {}))
    return as_arguments(made, target)


def as_arguments(made: object, target: str) -> dict[str, Any]:
    """Converts the return value of a factory to the arguments of `autofit.tune`."""
    if isinstance(made, Workload):
        return {field: getattr(made, field) for field in Workload.__dataclass_fields__}
    if isinstance(made, Mapping) and {"model", "loader"} <= set(made):
        return dict(made)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        return {"model": made[0], "loader": made[1]}
    found = f"a tuple of {len(made)}" if isinstance(made, tuple) else a_type(made)
    raise WorkloadError(
        f"{target} returned {found}; expected an autofit.Workload, a pair (model, loader), or a dict of "
        'autofit.tune\'s arguments with "model" and "loader".'
    )


def _load(where: str) -> ModuleType:
    if where.endswith(".py") or "/" in where or "\\" in where:
        return _load_file(Path(where))
    _add_to_path(Path.cwd())
    parents = [where.rsplit(".", count)[0] for count in range(where.count(".") + 1)]
    with _users_code(f"importing {where}", absent=parents):
        return importlib.import_module(where)


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        near = get_close_matches(path.name, [each.name for each in path.parent.glob("*.py")], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{path} does not exist; expected a Python file, as in train.py:make_workload.{hint}")
    _add_to_path(path.parent)
    spec = importlib.util.spec_from_file_location(LOADED, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as Python; expected a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[LOADED] = module  # so that data classes and loader workers find it by its name
    with _users_code(f"importing {path.name}"):
        spec.loader.exec_module(module)
    return module


def _add_to_path(folder: Path) -> None:
    """Adds the user's folder to `sys.path`, after the standard library and before installed packages.

    A user's file named `statistics.py` must not shadow the standard module, which other code imports.
    """
    if str(folder) in sys.path or (folder == Path.cwd() and "" in sys.path):
        return
    roots = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    installed = ("site-packages", "dist-packages")
    standard = [i for i, each in enumerate(sys.path) if each.startswith(roots) and not each.endswith(installed)]
    sys.path.insert(standard[-1] + 1 if standard else len(sys.path), str(folder))


@contextmanager
def _users_code(what: str, absent: Sequence[str] = ()) -> Iterator[None]:
    """Raises errors from inside as `UserCodeError`. A missing module listed in `absent` is a `UsageError`."""
    try:
        yield
    except BaseException as error:  # noqa: BLE001  # the user's code may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name in absent:
            raise UsageError(
                f"the module {error.name!r} was not found; expected a module on the import path, "
                "or a path that ends in .py."
            ) from None
        raised = traceback.format_exception_only(error)
        line = "".join(raised).strip().splitlines()[-1]
        frames = traceback.extract_tb(error.__traceback__)
        # The traceback starts at the first frame in the user's code. There is none if the file could not be parsed.
        users = [i for i, each in enumerate(frames) if each.filename != __file__ and "importlib" not in each.filename]
        shown = traceback.format_list(frames[users[0] :]) if users else []
        lines = ["Traceback (most recent call last):\n", *shown, *raised]
        raise UserCodeError(f"{what} raised {redacted(line)}", redacted("".join(lines))) from None


def record_of(kind: type[_Record], **values: object) -> _Record:
    """Returns a record of the user's arguments.

    Raises:
        UsageError: an argument has a value that is not allowed.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0] if issubclass(kind, Options) else kind.__name__.lower()
        raise UsageError(f"{name} is {first['input']!r}: {first['msg']}. See autofit.tune for its values.") from None
