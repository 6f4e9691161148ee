"""The knobs of a search space as Optuna's parameters."""

from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autofit.core.plan import KnobValue
from autofit.core.trial import Purpose
from autofit.study.optuna_distributions import distributions_of, domain, holds
from tests.study.samples import PLAN, measured, reopen, space, storage_at


def test_whole_numbers_are_a_range_and_other_values_choices() -> None:
    found = distributions_of(space(blocks=(0, 6, 12)))
    assert found["checkpointed_blocks"] == IntDistribution(0, 12)
    assert found["micro_batch_size"] == found["accumulation_steps"] == IntDistribution(1, 2**20, log=True)


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


def test_the_domain_names_choices_and_leaves_ranges_open() -> None:
    assert domain(CategoricalDistribution(("fp32", "bf16"))) == "fp32, bf16"
    assert domain(IntDistribution(0, 6)) == domain(IntDistribution(0, 12))


def test_ranges_of_whole_numbers_may_change_within_a_study(db: Path) -> None:
    study = reopen(db)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    study = reopen(db, facts=space(blocks=(0, 6, 12)))
    study.finish(study.begin(PLAN.replace(checkpointed_blocks=12), Purpose.PROBE), measured())
    assert not any("further study" in note for note in study.notes)
    assert [
        trial.params["checkpointed_blocks"]
        for trial in optuna.load_study(study_name="net", storage=storage_at(db)).trials
    ] == [2, 12]
