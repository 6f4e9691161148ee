"""What Optuna reads of a trial."""

from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from tests.study.samples import MIB, PLAN, failed, in_optuna, measured, measurement, reopen, run, storage_at


@pytest.mark.parametrize(
    ("outcome", "state", "feasible"),
    [
        (measured(), TrialState.COMPLETE, True),
        (failed(Status.OUT_OF_MEMORY), TrialState.COMPLETE, False),
        (failed(Status.OUT_OF_HOST_MEMORY), TrialState.COMPLETE, False),
        (failed(Status.OVER_BUDGET, measurement=measurement(1500 * MIB)), TrialState.COMPLETE, False),
        (failed(Status.OVER_BUDGET, measurement=measurement(allocator_retries=1)), TrialState.COMPLETE, False),
        (failed(Status.NUMERIC), TrialState.COMPLETE, False),
        (failed(Status.LAUNCH_LIMIT), TrialState.COMPLETE, False),
        (failed(Status.USER_ERROR), TrialState.FAIL, None),
        (failed(Status.CRASHED), TrialState.FAIL, None),
        (failed(Status.TIMED_OUT), TrialState.FAIL, None),
        (failed(Status.INTERRUPTED), TrialState.FAIL, None),
        (failed(Status.POISONED), TrialState.FAIL, None),
        (failed(Status.SKIPPED), TrialState.PRUNED, None),
        (failed(Status.REJECTED), TrialState.PRUNED, None),
    ],
    ids=lambda value: value.status.value if isinstance(value, Outcome) else None,
)
def test_optuna_reads_each_outcome(db: Path, outcome: Outcome, state: TrialState, feasible: bool | None) -> None:
    run(db, outcome)
    (trial,) = in_optuna(db)
    assert trial.state is state
    if state is TrialState.COMPLETE:
        assert list(trial.constraints) == ["memory", "valid"]
        assert all(value <= 0 for value in trial.constraints.values()) is feasible
        assert (trial.value or 0) > 0 or not feasible


def test_every_status_can_be_recorded() -> None:
    study = reopen(None)
    for status in Status:
        outcome = measured() if status is Status.MEASURED else failed(status)
        assert study.finish(study.begin(PLAN, Purpose.PROBE), outcome).outcome.status is status


def test_optuna_finds_the_best_feasible_trial(db: Path) -> None:
    study = reopen(db)
    study.finish(study.begin(PLAN, Purpose.PROBE), failed(Status.OUT_OF_MEMORY))
    good = study.begin(PLAN.replace(micro_batch_size=2), Purpose.PROBE)
    study.finish(good, measured())
    study.finish(study.begin(PLAN, Purpose.PROBE), failed(Status.NUMERIC))
    assert optuna.load_study(study_name="net", storage=storage_at(db)).best_trial.number == good
