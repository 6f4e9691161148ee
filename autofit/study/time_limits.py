"""Time limits for a database: a host that vanished silently would otherwise block a search for a quarter of an hour."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy

CONNECT_S = 10
"""Maximum time for connecting, in seconds."""
_WITH_TIMEOUT = ("psycopg", "psycopg2", "pymysql", "mysqldb", "mysqlconnector")
"""Drivers whose limit on the time for connecting is `connect_timeout`, in seconds."""
_LIBPQ = ("psycopg", "psycopg2")
_SILENCE: dict[str, int] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's names (PostgreSQL, Database Connection Control Functions). A host that does not answer on the network for
about 30 s is away. On a local socket they have no effect."""


def connect_args(url: "sqlalchemy.URL") -> dict[str, Any]:
    """Returns arguments for the driver of a database; none that the URL has already."""
    driver = url.get_driver_name()
    limits = {"connect_timeout": CONNECT_S} if driver in _WITH_TIMEOUT else {}
    limits |= _SILENCE if driver in _LIBPQ else {}
    return {name: value for name, value in limits.items() if name not in url.query}
