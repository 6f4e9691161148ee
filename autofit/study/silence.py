"""Silence: a database that stops answering in the middle of a request is given up, so that the caller gets an error.

On an open connection, a driver waits without limit for the answer of a server that hangs. The connections of this
process are then shut down, which ends the wait. The pool connects anew for the next request.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    import sqlalchemy

ANSWER_S = 60.0
"""Maximum time of one request, in seconds. Reading a study of 10,000 trials takes less than 10 s."""

_connections: WeakSet[Any] = WeakSet()


def watch(engine: "sqlalchemy.Engine") -> None:
    """Watches the connections that an engine opens from now on."""
    from sqlalchemy import event  # noqa: PLC0415  # takes longer than to read an SQLite file

    def opened(connection: Any, record: object) -> None:
        if hasattr(connection, "fileno"):  # it has a socket
            _connections.add(connection)

    event.listen(engine, "connect", opened)


@contextmanager
def limited(seconds: float = ANSWER_S) -> Iterator[None]:
    """Shuts down the watched connections of this process if the context lasts longer."""
    timer = threading.Timer(seconds, _shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _shut_down() -> None:
    for connection in list(_connections):
        # Suppressed: it is closed, or its driver does not show its socket.
        with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as its:
            its.shutdown(socket.SHUT_RDWR)
