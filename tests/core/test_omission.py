"""The reason why a combination was not measured."""

import pytest

from autofit.core.plan import Plan
from autofit.core.space import Basis, Omission

PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 1})


def test_it_is_written_and_read() -> None:
    omission = Omission(plan=PLAN, basis=Basis.ESTIMATED, reason="too large")
    assert Omission.model_validate_json(omission.model_dump_json()) == omission
    assert '"estimated"' in omission.model_dump_json()


def test_an_unknown_basis_is_refused() -> None:
    with pytest.raises(ValueError, match="guessed"):
        Basis("guessed")
