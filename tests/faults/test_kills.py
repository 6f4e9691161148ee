"""F52: a search that is killed at any moment is gone on with: nothing is lost or doubled, and its answer stays."""

from pathlib import Path

import pytest

from tests.faults.kills import at_each_write, at_random


@pytest.mark.fault("F52")
def test_kills_in_some_writes_and_at_random(tmp_path: Path) -> None:
    kills, wrong = at_each_write(tmp_path, 20, (0.5,))
    assert wrong == []
    assert kills > 4
    assert at_random(tmp_path, 3, seed=1) == (3, [])


@pytest.mark.slow
@pytest.mark.fault("F52")
def test_a_kill_in_each_write_and_two_hundred_at_random(tmp_path: Path) -> None:
    kills, wrong = at_each_write(tmp_path, 1)
    assert wrong == []
    assert kills > 300
    assert at_random(tmp_path, 200, seed=0) == (200, [])
