"""Verdicts of earlier searches apply to the same environment only, and only new ones are kept."""

from typing import Any

from autofit.core.environment import Environment
from autofit.core.gate_verdict import GateVerdict, GateVerdicts
from autofit.probing.survey.earlier_gates import EarlierGates
from tests.fakes import briefing_of, small_bench

ENVIRONMENT = briefing_of(small_bench()).environment
PASSED = {"accumulation": GateVerdict(passed=True, reason="alike")}
FAILED = {"accumulation": GateVerdict(passed=False, reason="not alike")}
PRECISION = {"precision=bf16": GateVerdict(passed=True, reason="close")}
LOOK: Any = "what the workload reached"


def kept(found: dict[str, GateVerdict], environment: Environment = ENVIRONMENT) -> GateVerdicts:
    verdicts = EarlierGates((), environment).to_keep(found, [LOOK, LOOK])
    assert verdicts is not None
    return verdicts


def test_verdicts_apply_to_their_environment_and_the_newest_wins() -> None:
    other = ENVIRONMENT.model_copy(update={"versions": {"torch": "9.9"}})
    assert EarlierGates([kept(PASSED)], ENVIRONMENT).found == PASSED
    assert EarlierGates([kept(PASSED)], other).found == {}
    assert EarlierGates([kept(PASSED), kept(FAILED)], ENVIRONMENT).found == FAILED


def test_only_new_verdicts_are_kept_together_with_the_earlier_ones() -> None:
    earlier = EarlierGates([kept(PASSED)], ENVIRONMENT)
    assert earlier.to_keep(PASSED, [LOOK]) is None
    assert earlier.to_keep({}, [LOOK]) is None
    more = earlier.to_keep(PRECISION, [LOOK])
    assert more is not None
    assert more.found == PASSED | PRECISION


def test_nothing_is_kept_where_steps_change_what_the_workload_reaches() -> None:
    after: Any = "something else"
    assert EarlierGates((), ENVIRONMENT).to_keep(PASSED, [LOOK, after]) is None
