"""What a worker does with offers that it cannot take, and when it gives up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from autofit.core.errors import DevicePoisoned, StudyError, UserCodeError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.fleet import worker as module
from autofit.fleet.worker import SearchWorker
from autofit.probing.child_request import Target
from autofit.search.bench import Bench
from autofit.study import Study
from autofit.study import fleet as fleets
from autofit.study.fleet import Fleet, OpenOffer
from tests.fakes import opened
from tests.study.databases import BRIEFING, offer_of, place_in, study_in

Run = Callable[[Plan, Purpose], Outcome]


@pytest.fixture(autouse=True)
def looks_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFERS_S", 0.05)
    monkeypatch.setattr(module, "RECONNECT_S", 0.05)


def worker_of(folder: Path, run: Run, said: list[str], night: Callable[[str], None] | None = None) -> SearchWorker:
    @contextmanager
    def bench(target: Target) -> Iterator[Bench]:
        if target.name == "broken.py":
            raise UserCodeError("your code failed.", "")
        yield opened(BRIEFING, run)

    return SearchWorker(place_in(folder), None, bench, said.append, night)


@contextmanager
def offered(folder: Path) -> Iterator[tuple[Study, Fleet, int]]:
    """Gives a study whose search is offered, the fleet of its tuner, and the number of the offer."""
    with (
        study_in(folder) as study,
        Fleet.opened(place_in(folder)) as tuner,
        tuner.offering(offer_of(study.name)) as number,
    ):
        yield study, tuner, number


def never(plan: Plan, purpose: Purpose) -> Outcome:
    raise AssertionError("no plan was offered")


def test_an_offer_of_another_version_or_of_broken_code_is_refused_once(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        Fleet.opened(place_in(tmp_path)) as tuner,
        tuner._member({fleets.OFFER: '{"newer": 1}'}),
        tuner.offering(offer_of().model_copy(update={"target": "broken.py"})),
    ):
        done = worker_of(tmp_path, never, said).work(0.3)
    assert sorted(done.refused.values()) == ["it comes from another version of autofit", "your code failed."]
    assert [text for text in said if text.startswith("not taken")] == [
        "not taken: it comes from another version of autofit", "not taken: your code failed.",
    ]  # fmt: skip
    assert (done.plans, done.searches) == (0, 0)


def test_a_worker_whose_device_stays_poisoned_gives_up_and_its_plans_are_recorded(tmp_path: Path) -> None:
    poisoned = Outcome(status=Status.POISONED, reason="CUDA error")
    with offered(tmp_path) as (study, tuner, number):
        queue = study.queue(number)
        numbers = [queue.put(plan) for plan in plans(3)]
        with pytest.raises(DevicePoisoned, match="stays poisoned in fresh processes: CUDA error"):
            worker_of(tmp_path, lambda plan, purpose: poisoned, []).work(5.0)
        assert queue.finished(numbers) == set(numbers[:2])
        assert tuner.workers(number) == frozenset()


def test_a_worker_that_is_stopped_gives_its_plan_back(tmp_path: Path) -> None:
    def interrupted(plan: Plan, purpose: Purpose) -> Outcome:
        raise KeyboardInterrupt("terminated")

    with offered(tmp_path) as (study, _, number):
        (plan,) = plans(1)
        trial = study.queue(number).put(plan)
        with pytest.raises(KeyboardInterrupt):
            worker_of(tmp_path, interrupted, []).work(5.0)
        outcome = study.queue(number).state(trial, plan).outcome
        assert outcome is not None
        assert outcome.status is Status.INTERRUPTED


def test_a_database_that_is_away_for_a_moment_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    whole, looks = Fleet.offers, [0]

    def offers(self: Fleet) -> list[OpenOffer]:
        looks[0] += 1
        if looks[0] == 1:
            raise StudyError("the database is away.")
        return whole(self)

    monkeypatch.setattr(Fleet, "offers", offers)
    worker_of(tmp_path, never, said).work(1.0)
    assert said == ["the database is away. It is tried again."]
    assert looks[0] >= 2


def test_a_worker_takes_part_in_each_night_once(tmp_path: Path) -> None:
    said: list[str] = []
    jobs: list[str] = []
    with Fleet.opened(place_in(tmp_path)) as host, host.hosting("jobs.yaml"):
        done = worker_of(tmp_path, never, said, jobs.append).work(0.5)
        assert worker_of(tmp_path, never, said).work(0.2).nights == 0  # a worker of searches alone
    assert jobs == ["jobs.yaml"]
    assert done.nights == 1
    assert "taking part in the night of jobs.yaml" in said


def test_a_night_that_a_worker_cannot_join_is_refused_once(tmp_path: Path) -> None:
    def missing(jobs: str) -> None:
        raise StudyError(f"{jobs} is not here.")

    with Fleet.opened(place_in(tmp_path)) as host, host.hosting("jobs.yaml"):
        done = worker_of(tmp_path, never, [], missing).work(0.5)
    assert (done.nights, list(done.refused.values())) == (0, ["jobs.yaml is not here."])


def plans(count: int) -> list[Plan]:
    return list(islice(SearchSpace(BRIEFING.space).plans(), count))
