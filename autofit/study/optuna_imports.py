"""Releases the stack frames that Optuna's failed optional imports keep alive."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from optuna import _imports

P = ParamSpec("P")
T = TypeVar("T")


def released(function: Callable[P, T]) -> Callable[P, T]:
    """Wraps a function that uses Optuna, so that `release` is always called when it ends."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        finally:
            release()

    return wrapper


def release() -> None:
    """Drops the tracebacks of Optuna's optional imports that failed.

    Optuna keeps each such error until the missing package is needed. The traceback keeps every frame alive that was
    running when Optuna loaded the module. If a script calls `autofit.tune` in a function, this keeps the model in that
    function's variables for the lifetime of the process.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "optuna":
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _imports._DeferredImportExceptionContextManager) and value._deferred is not None:
                error: BaseException | None = value._deferred[0]
                while error is not None:
                    error.__traceback__ = None
                    error = error.__cause__ or error.__context__
