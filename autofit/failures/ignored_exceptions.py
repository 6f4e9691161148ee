"""Frames in which Python ignores exceptions: an error that a signal's handler raises there would be lost."""

import inspect
import logging
import weakref
from types import FrameType

_FILES = tuple(inspect.getfile(found) for found in (weakref, weakref.WeakSet))
"""Modules that call back when an object ends."""
_AT_FORK = frozenset({"_acquireLock", "_releaseLock", "_prepareFork", "_afterFork"})
"""Functions of `logging` that Python calls around a fork, under their names of 3.11 to 3.14."""


def ignores_exceptions(frame: FrameType | None) -> bool:
    """Returns whether a frame runs in a finalizer (`__del__`), the callback of a weak reference, or a hook of a fork.

    Python prints an exception that leaves one of these, and continues. The handler of a signal should then do nothing,
    and the signal come again a little later.

    Args:
        frame: the frame that the signal interrupted.
    """
    while frame is not None:
        code = frame.f_code
        at_fork = code.co_name in _AT_FORK and code.co_filename == logging.__file__
        if code.co_name == "__del__" or at_fork or code.co_filename in _FILES or _is_called_back(frame):
            return True
        frame = frame.f_back
    return False


def _is_called_back(frame: FrameType) -> bool:
    """Returns whether the only argument of a frame's function is a weak reference whose object has ended."""
    code = frame.f_code
    if code.co_argcount != 1:
        return False
    given = frame.f_locals.get(code.co_varnames[0])
    return isinstance(given, weakref.ref) and given() is None
