"""Plans that a tuner hands out and workers take."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from sqlalchemy.pool import NullPool

from autofit.core.outcome import Outcome, Status
from autofit.core.space import SearchSpace
from autofit.study import Study
from autofit.study.plan_queue import WITHDRAWN, PlanQueue
from tests.study.databases import BRIEFING, offer_of, place_in, study_in, url_in

PLANS = list(islice(SearchSpace(BRIEFING.space).plans(), 3))
DONE = Outcome(status=Status.OUT_OF_MEMORY, reason="too large")
OFFER = 7


@pytest.fixture
def tuner(tmp_path: Path) -> Iterator[Study]:
    with study_in(tmp_path) as study:
        yield study


def joined(folder: Path, study: Study, number: int = OFFER) -> AbstractContextManager[PlanQueue]:
    return PlanQueue.joined(place_in(folder), offer_of(study.name), number, BRIEFING.environment)


def test_plans_are_taken_once_in_order_and_come_back_with_their_outcomes(tuner: Study, tmp_path: Path) -> None:
    queue = tuner.queue(OFFER)
    numbers = [queue.put(plan) for plan in PLANS]
    with joined(tmp_path, tuner) as one, joined(tmp_path, tuner) as other:
        taken = [one.take(1), other.take(2), one.take(1), other.take(2)]
        assert [None if each is None else (each.number, each.plan, each.worker) for each in taken] == [
            (numbers[0], PLANS[0], 1), (numbers[1], PLANS[1], 2), (numbers[2], PLANS[2], 1), None,
        ]  # fmt: skip
        assert queue.finished(numbers) == frozenset()
        assert queue.state(numbers[1], PLANS[1]).worker == 2
        assert queue.state(numbers[1], PLANS[1]).trial is None
        assert other.settle(numbers[1], DONE)
    assert queue.finished(numbers) == {numbers[1]}
    trial = queue.state(numbers[1], PLANS[1]).trial
    assert trial is not None
    assert (trial.number, trial.plan, trial.outcome) == (numbers[1], PLANS[1], DONE)


def test_plans_of_another_offer_are_left(tuner: Study, tmp_path: Path) -> None:
    tuner.queue(OFFER).put(PLANS[0])
    with joined(tmp_path, tuner, OFFER + 1) as other:
        assert other.take(1) is None
    with joined(tmp_path, tuner) as queue:
        assert queue.take(1) is not None


def test_a_plan_that_was_given_to_somebody_else_does_not_count(tuner: Study, tmp_path: Path) -> None:
    queue = tuner.queue(OFFER)
    number = queue.put(PLANS[0])
    with joined(tmp_path, tuner) as slow:
        assert slow.take(1) is not None
        assert queue.settle(number, Outcome(status=Status.CRASHED, reason="lost"))
        assert not slow.settle(number, DONE)
    assert len(trials(tmp_path, tuner.name)) == 1


def test_only_plans_that_nobody_has_begun_are_withdrawn(tuner: Study, tmp_path: Path) -> None:
    queue = tuner.queue(OFFER)
    numbers = [queue.put(plan) for plan in PLANS]
    with joined(tmp_path, tuner) as worker:
        taken = worker.take(1)
        assert taken is not None
        queue.withdraw(numbers)
        assert worker.take(1) is None
        assert queue.state(numbers[0], PLANS[0]).outcome is None
        assert [queue.state(number, plan).outcome for number, plan in zip(numbers[1:], PLANS[1:], strict=True)] == [
            WITHDRAWN, WITHDRAWN,
        ]  # fmt: skip
        assert worker.settle(taken.number, DONE)
    states = [trial.state for trial in trials(tmp_path, tuner.name)]
    assert states == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED]


def test_what_workers_found_is_known_to_the_next_search(tuner: Study, tmp_path: Path) -> None:
    queue = tuner.queue(OFFER)
    number = queue.put(PLANS[0])
    with joined(tmp_path, tuner) as worker:
        assert worker.take(1) is not None
        assert worker.settle(number, DONE)
    queue.put(PLANS[1])  # and its tuner died
    with study_in(tmp_path) as again:
        assert [(trial.plan, trial.outcome, trial.earlier) for trial in again.earlier()] == [(PLANS[0], DONE, True)]
        assert again.notes == ()


def test_a_record_that_cannot_be_read_is_a_crash(tuner: Study, tmp_path: Path) -> None:
    queue = tuner.queue(OFFER)
    number = queue.put(PLANS[0])
    storage = storage_in(tmp_path)
    study = storage.get_study_id_from_name(tuner.name)
    storage.set_trial_state_values(storage.get_trial_id_from_study_id_trial_number(study, number), TrialState.FAIL)
    outcome = queue.state(number, PLANS[0]).outcome
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (Status.CRASHED, "its record cannot be read")


def storage_in(folder: Path) -> RDBStorage:
    return RDBStorage(url_in(folder), engine_kwargs={"poolclass": NullPool})


def trials(folder: Path, name: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=storage_in(folder)).get_trials()
