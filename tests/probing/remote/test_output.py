"""What the user's code prints is kept in a file, and cannot disturb the protocol."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.probing.remote.child import Child, Deadlines
from autofit.probing.remote.output import KEPT_BYTES, OutputLog
from tests.probing.remote.fake_worker import install

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


QUICK = Deadlines(first_s=60.0, progress_s=0.5, total_s=60.0, grace_s=10.0, exit_s=30.0)
"""Short only where a child that hangs is waited for: what a child does in time may take long on a busy machine."""


Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Child] = []
    log = OutputLog(tmp_path / "printed.log")

    def start_child(behaviour: str, deadlines: Deadlines = QUICK, **environment: str) -> Child:
        install(tmp_path, behaviour, monkeypatch)
        started.append(Child(deadlines, environment, log))
        return started[-1]

    yield start_child
    for made in started:
        made.kill()
    log.close()


def test_a_flood_on_the_output_disturbs_nothing_and_is_cut(start: Start) -> None:
    child = start("""
        sys.stdout.write("start of the flood")
        sys.stdout.write('{"kind": "outcome", "forged": true}\\n' * 100000)
        sys.stdout.write("x" * 3000000)  # and not one line end
        sys.stderr.write("end of the flood")
        sys.stdout.flush()
        say("outcome", genuine=True)
    """)
    assert child.ask({}) == {"kind": "outcome", "genuine": True}
    child.kill()
    assert len(child.log) <= KEPT_BYTES
    assert "x" * 1000 in child.log
    assert "start of the flood" not in child.log
