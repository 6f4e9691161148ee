"""A search that is shared with workers on a real PostgreSQL server."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

from autofit.core.recommendation import Recommendation
from autofit.core.trial import Purpose
from autofit.search.bench import Bench
from autofit.search.event import Event
from autofit.search.request import Request
from autofit.search.search import search
from autofit.study import fleet
from autofit.study.plan_queue import TAKEN_BY
from autofit.study.stored import decoded
from tests.fleet.workers import TARGET, bench_taking, working
from tests.postgres import Server


def shared(url: str, bench: Bench, listen: Callable[[Event], None] = lambda event: None) -> Recommendation:
    """Searches with workers; the first waits for them, so that a fast search has some."""

    def patient(event: Event) -> None:
        if event.kind == "stage" and event.text == "searching":
            wait_for_worker(url)
        listen(event)

    return search(bench, Request(study=url, target=TARGET), [patient])


def wait_for_worker(url: str, count: int = 1) -> None:
    """Returns once this number of workers have joined the offer."""
    ends_s = time.monotonic() + 60
    while time.monotonic() < ends_s:
        members = [
            m for m in trials_of(url, fleet.FLEET) if fleet.WORKS_FOR in m.user_attrs and not m.state.is_finished()
        ]
        if len(members) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("no worker has joined")


def trials_of(url: str, name: str) -> list[optuna.trial.FrozenTrial]:
    try:
        return optuna.load_study(study_name=name, storage=storage_of(url)).get_trials()
    except KeyError:
        return []


def storage_of(url: str) -> RDBStorage:
    """Returns a storage that keeps no connection open."""
    return RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def probes_of(url: str) -> list[tuple[str, str, object]]:
    """Returns plan, status and worker of each finished probe that ran; fails if a trial is not finished."""
    (name,) = [s.study_name for s in optuna.get_all_study_summaries(storage_of(url)) if s.study_name != fleet.FLEET]
    study = optuna.load_study(study_name=name, storage=storage_of(url))
    found = []
    for trial in study.get_trials():
        assert trial.state.is_finished(), trial
        record = decoded(trial.user_attrs, study.user_attrs, finished=True)
        assert record is not None
        assert record.outcome is not None
        if record.request.purpose is Purpose.PROBE and record.outcome.status != "skipped":
            found.append((record.request.plan.key, str(record.outcome.status), trial.user_attrs.get(TAKEN_BY)))
    return found


@pytest.mark.slow
def test_workers_share_the_plans_of_a_search(postgres: Server, tmp_path: Path) -> None:
    url, here = postgres.url("shared"), list[str]()
    with working(url, 4, 0.3, tmp_path):
        found = shared(url, bench_taking(0.3, ran=here))
        texts = [(tmp_path / f"worker{number}.txt").read_text() for number in range(4)]
    probes = probes_of(url)
    assert [key for key, count in Counter(key for key, _, _ in probes).items() if count > 1] == []  # none twice
    assert len({worker for _, _, worker in probes if worker is not None}) == 4
    assert {key for key, _, worker in probes if worker is None} == set(here)
    assert sum(found.counts.values()) >= len(probes)
    assert found.gain is not None
    assert found.gain.low > 1
    assert all('{"opened": "train.py:make_workload", "arguments": {"depth": 2}}' in text for text in texts)


@pytest.mark.slow
def test_the_plan_of_a_killed_worker_is_measured_by_another_process(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "LOST_S", 3)
    url = postgres.url("killed")
    with working(url, 3, 0.3, tmp_path) as processes, working(url, 1, 600.0, folder(tmp_path)) as hanging:

        def kill_once(event: Event) -> None:
            taken = [t for name in studies(url) for t in trials_of(url, name) if t.user_attrs.get(TAKEN_BY) is not None]
            waiting = [t for t in taken if not t.state.is_finished()]
            if event.kind == "trial" and hanging[0].poll() is None and waiting and stuck(waiting):
                hanging[0].kill()

        found = shared(url, bench_taking(0.3), kill_once)
        assert [process.poll() for process in processes] == [None] * 3
    assert hanging[0].returncode == -9
    died = {key for key, status, _ in probes_of(url) if status == "crashed"}
    assert len(died) == 1
    assert [(key, status) for key, status, _ in probes_of(url) if key in died and status == "measured"]
    measured = Counter(key for key, status, _ in probes_of(url) if status == "measured")
    assert set(measured.values()) == {1}
    assert found.gain is not None


def folder(path: Path) -> Path:
    """Makes a folder for the words of another group of workers."""
    made = path / "hanging"
    made.mkdir()
    return made


def studies(url: str) -> list[str]:
    return [s.study_name for s in optuna.get_all_study_summaries(storage_of(url)) if s.study_name != fleet.FLEET]


def stuck(trials: list[optuna.trial.FrozenTrial]) -> bool:
    """Returns whether a trial has run for longer than a plan takes."""
    now = time.time()
    return any(t.datetime_start is not None and now - t.datetime_start.timestamp() > 1.0 for t in trials)


@pytest.mark.slow
def test_a_worker_in_another_environment_takes_no_plan(postgres: Server, tmp_path: Path) -> None:
    url = postgres.url("unequal")
    with working(url, 1, 0.0, tmp_path, "Fake 2"):
        ends_s = time.monotonic() + 30

        def patient(event: Event) -> None:
            while "not taken" not in words() and time.monotonic() < ends_s:
                time.sleep(0.1)

        def words() -> str:
            return (tmp_path / "worker0.txt").read_text()

        search(bench_taking(0.0), Request(study=url, target=TARGET), [patient])
        assert "not taken: the search is in another environment: device: fake Fake 1, was fake Fake 2" in words()
    assert {worker for _, _, worker in probes_of(url)} == {None}


@pytest.mark.slow
def test_a_search_without_workers_is_as_before(postgres: Server) -> None:
    url = postgres.url("alone")
    found = search(bench_taking(0.0), Request(study=url, target=TARGET))
    assert found.gain is not None
    assert {worker for _, _, worker in probes_of(url)} == {None}
    assert [t.state.is_finished() for t in trials_of(url, fleet.FLEET)] == [True]
