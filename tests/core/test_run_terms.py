"""The terms of a run say which score makes a probe go on to its proof."""

import pytest
from pydantic import ValidationError

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.trial import OPEN, RunTerms

MEMORY = Memory(allocated_bytes=10, judged_bytes=12, judged_by="test")
FOUND = Measurement(step_times_s=(0.5,), samples_per_step=8, tokens_per_step=400.0, memory=MEMORY)
"""16 samples and 800 tokens per second."""


def test_a_probe_goes_on_if_its_score_is_higher() -> None:
    assert RunTerms(above=15.9).beaten_by(FOUND)
    assert not RunTerms(above=16.0).beaten_by(FOUND)


def test_the_score_is_that_of_the_objective() -> None:
    assert RunTerms(above=799.0, objective=Objective(unit="tokens")).beaten_by(FOUND)
    assert not RunTerms(above=799.0).beaten_by(FOUND)


def test_open_terms_never_ask_for_a_proof() -> None:
    assert not OPEN.beaten_by(FOUND)
    assert not OPEN.at_once
    assert OPEN.limit_s is None


def test_only_a_score_of_zero_begins_with_the_proof() -> None:
    assert RunTerms(above=0.0).at_once
    assert not RunTerms(above=0.1).at_once


@pytest.mark.parametrize("wrong", [{"limit_s": 0.0}, {"above": -1.0}, {"share": 0.5}])
def test_terms_that_mean_nothing_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RunTerms.model_validate(wrong)
