"""What Optuna reads of a trial: its state, its value, its constraints and its parameters."""

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import KnobValue
from autofit.core.trial import Purpose
from autofit.study.optuna_terms import distributions_of, holds
from tests.study.samples import MIB, PLAN, failed, in_optuna, measured, measurement, reopen, run, space, storage_at


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
def test_optuna_reads_each_outcome(journal: Path, outcome: Outcome, state: TrialState, feasible: bool | None) -> None:
    run(journal, outcome)
    (trial,) = in_optuna(journal)
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


def test_optuna_finds_the_best_feasible_trial(journal: Path) -> None:
    study = reopen(journal)
    study.finish(study.begin(PLAN, Purpose.PROBE), failed(Status.OUT_OF_MEMORY))
    good = study.begin(PLAN.replace(micro_batch_size=2), Purpose.PROBE)
    study.finish(good, measured())
    study.finish(study.begin(PLAN, Purpose.PROBE), failed(Status.NUMERIC))
    assert optuna.load_study(study_name="net", storage=storage_at(journal)).best_trial.number == good


def test_whole_numbers_are_a_range_and_other_values_choices() -> None:
    found = distributions_of(space(blocks=(0, 6, 12)), [])
    assert found["checkpointed_blocks"] == IntDistribution(0, 12)
    assert found["precision"] == CategoricalDistribution(("fp32", "bf16"))
    assert found["micro_batch_size"] == found["accumulation_steps"] == IntDistribution(1, 2**20, log=True)


def test_the_first_choices_of_a_study_stay_and_ranges_may_change() -> None:
    first = distributions_of(space(), [])
    trial = create_trial(
        value=1.0, params={"precision": "bf16", "checkpointed_blocks": 2, "micro_batch_size": 1},
        distributions={name: first[name] for name in ("precision", "checkpointed_blocks", "micro_batch_size")},
    )  # fmt: skip
    later = distributions_of(space(precisions=("fp32", "tf32"), blocks=(0, 12)), [trial])
    assert later["precision"] == first["precision"]
    assert later["checkpointed_blocks"] == IntDistribution(0, 12)


@pytest.mark.parametrize(
    ("value", "held"), [(0, True), (12, True), (13, False), (-1, False), (True, False), ("6", False), (6.0, False)]
)
def test_a_range_holds_the_whole_numbers_in_it(value: KnobValue, held: bool) -> None:
    assert holds(IntDistribution(0, 12), value) is held


@pytest.mark.parametrize(("value", "held"), [("bf16", True), (False, True), ("fp16", False), (0, False)])
def test_choices_hold_values_of_the_same_type(value: KnobValue, held: bool) -> None:
    assert holds(CategoricalDistribution(("bf16", False)), value) is held


def test_a_knob_without_a_distribution_holds_nothing() -> None:
    assert not holds(None, 1)
