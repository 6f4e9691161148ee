"""The workers of a database, as a search sees them."""

import time
from itertools import islice
from pathlib import Path

import pytest

from autofit.core.objective import Objective
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.space import SearchSpace
from autofit.probing.child_request import Target
from autofit.search import fleet_workers
from autofit.search.fleet_workers import FleetWorkers, workers_of
from autofit.search.workers import NoWorkers
from autofit.study.fleet import Fleet
from autofit.study.plan_queue import PlanQueue
from tests.study.databases import BRIEFING, offer_of, place_in, study_in, url_in

PLANS = list(islice(SearchSpace(BRIEFING.space).plans(), 3))
DONE = Outcome(status=Status.OUT_OF_MEMORY, reason="too large")
TARGET = Target("train.py:make_workload", arguments={"depth": 2})


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_workers, "LOOK_S", 0.0)


def test_a_search_is_offered_and_its_plans_come_back(tmp_path: Path) -> None:
    with (
        study_in(tmp_path) as study,
        workers_of(study, url_in(tmp_path), TARGET, BRIEFING, Objective()) as workers,
        Fleet.opened(place_in(tmp_path)) as fleet,
    ):
        (found,) = fleet.offers()
        assert found.offer is not None
        assert (found.offer.target, found.offer.arguments) == ("train.py:make_workload", {"depth": 2})
        assert (found.offer.study, found.offer.environment) == (study.name, BRIEFING.environment)
        assert not workers.free()
        with (
            PlanQueue.joined(place_in(tmp_path), found.offer, found.number, BRIEFING.environment) as queue,
            fleet.working(found.number) as worker,
        ):
            assert workers.free()
            workers.hand_out(PLANS[0])
            assert workers.free()  # one plan may wait while the worker is busy
            workers.hand_out(PLANS[1])
            assert not workers.free()
            assert workers.pending == {PLANS[0].key, PLANS[1].key}
            taken = queue.take(worker)
            assert taken is not None
            assert workers.collect() == []
            queue.settle(taken.number, DONE)
            (trial,) = workers.collect()
            assert (trial.plan, trial.outcome) == (PLANS[0], DONE)
            assert workers.pending == {PLANS[1].key}
            assert workers.free()


def test_the_plan_of_a_dead_worker_has_crashed(tmp_path: Path) -> None:
    with study_in(tmp_path) as study, Fleet.opened(place_in(tmp_path)) as fleet, fleet.offering(offer_of()) as number:
        workers = FleetWorkers(study.queue(number), fleet, number)
        with PlanQueue.joined(place_in(tmp_path), offer_of(study.name), number, BRIEFING.environment) as queue:
            with fleet.working(number), fleet.working(number) as dying:
                workers.hand_out(PLANS[0])
                workers.hand_out(PLANS[1])
                assert queue.take(dying) is not None
                assert workers.collect() == []
            with fleet.working(number):
                (trial,) = workers.collect()
                assert (trial.plan, trial.outcome) == (PLANS[0], Outcome(status=Status.CRASHED, reason=DIED))
                assert workers.pending == {PLANS[1].key}


def test_without_workers_the_plans_that_wait_come_back(tmp_path: Path) -> None:
    with study_in(tmp_path) as study, Fleet.opened(place_in(tmp_path)) as fleet, fleet.offering(offer_of()) as number:
        workers = FleetWorkers(study.queue(number), fleet, number)
        with fleet.working(number):
            workers.hand_out(PLANS[0])
        (trial,) = workers.collect()
        assert (trial.plan, trial.outcome.status) == (PLANS[0], Status.SKIPPED)


def test_dismissed_workers_find_no_plan(tmp_path: Path) -> None:
    with study_in(tmp_path) as study, Fleet.opened(place_in(tmp_path)) as fleet, fleet.offering(offer_of()) as number:
        workers = FleetWorkers(study.queue(number), fleet, number)
        with PlanQueue.joined(place_in(tmp_path), offer_of(study.name), number, BRIEFING.environment) as queue:
            workers.hand_out(PLANS[0])
            workers.dismiss()
            assert workers.pending == frozenset()
            assert queue.take(1) is None


@pytest.mark.parametrize("location", [":memory:", "study.db"])
def test_only_a_database_has_workers(tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with study_in(tmp_path) as study:
        with workers_of(study, location, TARGET, BRIEFING, Objective()) as workers:
            assert isinstance(workers, NoWorkers)
        with workers_of(study, url_in(tmp_path), None, BRIEFING, Objective()) as workers:
            assert isinstance(workers, NoWorkers)


def test_waiting_takes_a_moment(tmp_path: Path) -> None:
    with study_in(tmp_path) as study, Fleet.opened(place_in(tmp_path)) as fleet, fleet.offering(offer_of()) as number:
        began_s = time.monotonic()
        FleetWorkers(study.queue(number), fleet, number).wait()
        assert 0.5 * fleet_workers.POLL_S < time.monotonic() - began_s < 1.0
