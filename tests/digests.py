"""One digest of all state that the guard covers, for what tests compare before and after."""

import hashlib
from array import array
from collections.abc import Iterable
from typing import Any

from autofit.guard import Guard
from autofit.guard.object_state import SIMPLE, VALUE, Piece, TensorPiece, ValuePiece, feed
from autofit.guard.process_state import global_rngs
from autofit.guard.state_walk import Walk


def digest_of(*given: Any, **named: Any) -> str:
    """Returns one SHA-256 of the present state of the objects that `Guard` takes, and of the global generators.

    Changes nothing. Objects of unknown classes contribute only their type. Compares the same objects at two times
    within one process.
    """
    model, optimizer, loader, extras = (*given, None, None, None)[:4]
    loader, extras = named.pop("loader", loader), named.pop("extras", extras)
    return _digest(Walk.of(model, named.pop("optimizer", optimizer), loader, extras, **named).pieces)


def digest_in(guard: Guard) -> str:
    """Returns the digest of the present state of the objects that a guard took."""
    return _digest(guard.pieces)


def _digest(pieces: Iterable[Piece]) -> str:
    sink = hashlib.sha256()
    for piece in [*pieces, *global_rngs()]:
        feed(sink.update, piece.name)
        feed(sink.update, _content(piece))
    return sink.hexdigest()


def _content(piece: Piece) -> object:
    """Returns the present state of a piece. What other pieces cover is replaced by its type."""
    now = piece.read()
    if isinstance(piece, TensorPiece):
        hooks = [len(now[attribute] or ()) for attribute in piece.HOOKS]
        return [piece.tensor, now["requires_grad"], now["grad"] is None, hooks]
    if isinstance(now, (bytearray, array)):
        return bytes(now)
    if isinstance(piece, ValuePiece) or piece.order == VALUE:
        return now
    if type(now) is dict:
        return [(_shallow(key), _shallow(value)) for key, value in now.items()]
    return type(now)(map(_shallow, now)) if type(now) in (list, set) else _shallow(now)


def _shallow(value: Any) -> object:
    """Returns a simple value or a tuple of them unchanged, the name of a class, and the type name of anything else."""
    kind = type(value)  # `isinstance` would read `__class__` of the object
    if issubclass(kind, tuple):
        return tuple(map(_shallow, value))
    if issubclass(kind, type):
        return value.__qualname__
    return value if issubclass(kind, SIMPLE) else kind.__qualname__
