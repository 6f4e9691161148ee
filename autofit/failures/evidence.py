"""Evidence: the content of an exception as strings, and releasing the objects that the exception holds.

The frames of an exception hold the tensors of the failed step. `collect` therefore copies strings out of the exception,
and `scrub` then removes everything else. Neither imports torch.
"""

import re
import traceback
from dataclasses import dataclass
from inspect import currentframe
from types import FrameType, TracebackType
from typing import Any

from autofit.core.printable import redacted
from autofit.terminal import cut_middle

TEXT_LIMIT = 4000  # maximum characters of an exception's text; its end is kept, since wrappers put the cause there
_TRACEBACK_LIMIT = 16000
_CHAIN_LIMIT = 64

# CSI sequences (colours, cursor), then OSC strings (titles, links), in their 7-bit and 8-bit forms.
_CONTROL = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)")


@dataclass(frozen=True, slots=True)
class ErrorLink:
    """One exception of a chain, as strings only: safe to keep, pickle and send.

    Attributes:
        type_name: qualified name, such as "torch.OutOfMemoryError". Built-in types have no module.
        bases: qualified names of the type's method resolution order, including the type.
        text: message without control sequences, at most 4000 characters.
        code: `error_code` of a `torch.AcceleratorError`, or None.
    """

    type_name: str
    bases: tuple[str, ...]
    text: str
    code: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a failed attempt.

    Attributes:
        chain: the exceptions, outermost first. Empty if there was none.
        phase: prepare, fetch, transfer, forward, backward or optimizer.
        new_ooms: increase of the allocator's `num_ooms` during the attempt.
        exit_signal: the signal that terminated a child process.
        exit_code: the exit code of a child process.
        traceback_text: the user's frames and the messages, innermost exception first.
    """

    chain: tuple[ErrorLink, ...]
    phase: str | None = None
    new_ooms: int = 0
    exit_signal: int | None = None
    exit_code: int | None = None
    traceback_text: str = ""


def collect(error: BaseException, *, phase: str | None = None, new_ooms: int = 0) -> Evidence:
    """Returns the content of `error` that classification needs, as strings only. Never raises, even if `__str__` does.

    The chain holds causes, contexts (unless suppressed), a compiler's `inner_exception` and the members of groups, 64
    at most. An exception that a caller was already handling is left out, since it is a different failure.
    """
    errors = _walk(error, hidden=False)[:_CHAIN_LIMIT]
    chain = tuple(_link(each) for each in errors)
    blocks = [_traceback_block(each, link) for each, link in zip(errors, chain, strict=True)]
    text = plain("\n".join(block for block in reversed(blocks) if block), _TRACEBACK_LIMIT)
    return Evidence(chain, phase=phase, new_ooms=new_ooms, traceback_text=text)


def clear_frames(error: BaseException) -> None:
    """Clears the frames of `error` and of all exceptions it refers to, so that none of them keeps a tensor alive.

    Running frames are skipped, so call this after the handler has ended, or from a function that is not in the
    traceback. An exception that a caller was already handling is not changed.
    """
    for member in _walk(error, hidden=True):
        if member.__traceback__ is not None:
            traceback.clear_frames(member.__traceback__)


def scrub(error: BaseException) -> None:
    """Does what `clear_frames` does, and removes what else of `error` may keep a tensor alive.

    Mutates the exceptions: traceback, cause and context become None. Tensors, modules and frames are removed from their
    arguments and attributes. The message is kept.
    """
    clear_frames(error)
    for member in _walk(error, hidden=True):
        for name in ("__traceback__", "__cause__", "__context__"):
            _assign(BaseException, name, member, None)
        _drop_payload(member)


def named_error(error: BaseException) -> str:
    """Returns the class and the first line of an error, redacted: "KeyError: 'labels'"."""
    return redacted(f"{type(error).__name__}: {error}".strip().splitlines()[0])


def plain(text: str, limit: int) -> str:
    """Returns `text` without control sequences and unprintable characters, at most `limit` characters long."""
    text = _CONTROL.sub("", cut_middle(text, 4 * limit))
    kept = (c if c.isprintable() or c in "\n\t" else " " if c.isspace() else "" for c in text)
    return cut_middle("".join(kept), limit)


def _walk(error: BaseException, *, hidden: bool) -> list[BaseException]:
    """Returns `error` and the exceptions it refers to, outermost first, each once.

    With `hidden`, also contexts that `raise ... from None` suppresses, and exceptions in attributes. They do not
    describe the failure, but they hold memory. An exception whose traceback starts in a running frame around the one
    that caught `error` is being handled there, by the caller of `tune()`: it must be neither read nor cleared.
    """
    caught = error.__traceback__.tb_frame if error.__traceback__ is not None else None
    callers = {id(frame) for frame, _ in traceback.walk_stack(currentframe()) if frame is not caught}
    found: dict[int, BaseException] = {}
    pending: list[BaseException] = [error]
    while pending:
        current = pending.pop()
        head = current.__traceback__
        handled_outside = current is not error and head is not None and id(head.tb_frame) in callers
        if id(current) in found or handled_outside:
            continue
        found[id(current)] = current
        pending.extend(reversed(_referred(current, hidden)))
    return list(found.values())


def _referred(error: BaseException, hidden: bool) -> list[BaseException]:
    related: list[Any] = [error.__cause__]
    if hidden or not error.__suppress_context__:
        related.append(error.__context__)
    related.append(_attribute(error, "inner_exception"))
    if isinstance(error, BaseExceptionGroup):
        related.extend(error.exceptions)
    if hidden:
        related.extend(vars(error).values())
    return [each for each in related if isinstance(each, BaseException)]


def _attribute(error: BaseException, name: str) -> object:
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001 a user's property may raise any exception
        return None


def _link(error: BaseException) -> ErrorLink:
    bases = tuple(f"{base.__module__}.{base.__qualname__}".removeprefix("builtins.") for base in type(error).__mro__)
    code = _attribute(error, "error_code") if "torch.AcceleratorError" in bases else None
    try:
        text = redacted(plain(str(error), TEXT_LIMIT))
    except BaseException as broken:  # noqa: BLE001 user code: a failing __str__ must not hide the failure
        text = f"<no text: its __str__ raised {type(broken).__name__}>"
    return ErrorLink(bases[0], bases, text, code if type(code) is int else None)


def _traceback_block(error: BaseException, link: ErrorLink) -> str:
    """Returns the user's frames of `error` and its message, or "" if it has no traceback."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    owners = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames]
    # An error in torch code that autofit called has no user frame. The frames of torch then show the location.
    ours = {"autofit", "torch"} if set(owners) - {"autofit", "torch"} else {"autofit"}
    user = [each for each, owner in zip(frames, owners, strict=True) if owner not in ours]
    lines = redacted("".join(traceback.StackSummary.extract(user).format()))
    return f"Traceback (most recent call last):\n{lines}{link.type_name}: {link.text}\n"


def _assign(owner: type, name: str, error: BaseException, value: object) -> None:
    # The descriptor is used because the user's class may forbid assignment (a frozen dataclass) or shadow the name.
    vars(owner)[name].__set__(error, value)


def _drop_payload(error: BaseException) -> None:
    """Removes tensors, modules and frames from the arguments and attributes of `error`."""
    if not isinstance(error, BaseExceptionGroup):  # a group's arguments are its members
        args: tuple[object, ...] = vars(BaseException)["args"].__get__(error)
        light = tuple(f"<{type(each).__name__}>" if _is_heavy(each) else each for each in args)
        _assign(BaseException, "args", error, light)
    if isinstance(error, AttributeError):
        _assign(AttributeError, "obj", error, None)  # the object that lacks the attribute
    if isinstance(error, StopIteration):
        _assign(StopIteration, "value", error, None)
    attributes = vars(error)
    for name in [name for name, value in attributes.items() if _is_heavy(value)]:
        attributes[name] = None


def _is_heavy(value: object, depth: int = 4) -> bool:
    """Returns whether `value` is, or holds within `depth` levels of containers, a frame or an object of torch."""
    if isinstance(value, BaseException):
        return False
    if isinstance(value, (FrameType, TracebackType)):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return depth == 0 or any(_is_heavy(each, depth - 1) for each in value)
    return any(str(base.__module__).partition(".")[0] == "torch" for base in type(value).__mro__)
