"""How long a database may be silent."""

import pytest
from sqlalchemy.engine import make_url

from autofit.study.time_limits import CONNECT_S, connect_args

SILENCE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


@pytest.mark.parametrize(
    ("url", "arguments"),
    [
        ("postgresql+psycopg://h/n", {"connect_timeout": CONNECT_S, **SILENCE}),
        ("postgresql://h/n", {"connect_timeout": CONNECT_S, **SILENCE}),
        ("mysql+pymysql://h/n", {"connect_timeout": CONNECT_S}),
        ("postgresql+psycopg://h/n?connect_timeout=3", SILENCE),
        ("postgresql+asyncpg://h/n", {}),
        ("sqlite+pysqlite:///x", {}),
    ],
)
def test_a_host_that_does_not_answer_costs_seconds(url: str, arguments: dict[str, int]) -> None:
    assert connect_args(make_url(url)) == arguments
