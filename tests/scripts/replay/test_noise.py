"""How runs of one plan differ on a recorded machine, and on one that others use from time to time."""

import math

import pytest

from scripts.bench.search.replay.noise import Bursts, Drift
from scripts.bench.search.replay.table import Table
from scripts.bench.search.tables import record
from tests.scripts.replay.test_bench import device


@pytest.fixture(scope="module")
def drifting() -> Table:
    return record(device(noise=0.001, drift=0.1), "x", rounds=6)


def test_a_machine_that_slows_down_shows_in_the_drift(drifting: Table) -> None:
    drift = Drift(drifting)
    logs = [drift(drift.moment(second)) for second in range(math.ceil(drift.length_s))]
    assert max(logs) - min(logs) > 0.05


def test_the_recording_is_played_forth_and_back_without_end(drifting: Table) -> None:
    drift = Drift(drifting)
    length_s = drift.length_s
    assert drift.moment(length_s + 5) == pytest.approx(drift.moment(length_s - 5))
    assert drift.moment(4 * length_s + 7) == pytest.approx(drift.moment(7))


def test_bursts_come_and_go_and_are_the_same_for_the_same_seed() -> None:
    logs = [Bursts(3, calm_s=10.0, burst_s=10.0, most_log=1.0)(second) for second in range(2000)]
    again = Bursts(3, calm_s=10.0, burst_s=10.0, most_log=1.0)
    assert [again(second) for second in range(2000)] == logs
    assert 0.3 < sum(log > 0 for log in logs) / len(logs) < 0.7
    assert 0 <= min(logs) < max(logs) <= 1.0
    assert Bursts(4, calm_s=10.0, burst_s=10.0, most_log=1.0)(100.0) == Bursts(4, 10.0, 10.0, 1.0)(100.0)


def test_each_step_is_slowed_by_the_burst_that_it_begins_in() -> None:
    bursts = Bursts(3, calm_s=10.0, burst_s=10.0, most_log=1.0)
    at_s, times_s = 0.0, bursts.slowed([1.0] * 50, 0.0)
    for time_s in times_s:
        assert time_s == pytest.approx(math.exp(bursts(at_s)))
        at_s += time_s
