"""A plan in the forms in which a user has one."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.errors import PlanFileError, UsageError
from autofit.fit import Fit
from autofit.integrations.given_plan import answer_of, fit_of
from tests.conformance.test_exporters import OWN, answer


def test_a_file_a_fit_and_a_answer_are_the_same_plan(tmp_path: Path) -> None:
    found = answer(OWN.replace(micro_batch_size=2))
    path = tmp_path / "autofit.yaml"
    Fit(found).save(path)
    assert answer_of(found) is answer_of(Fit(found)) is found
    assert answer_of(path) == answer_of(str(path)) == found
    given = Fit(found)
    assert fit_of(given) is given
    assert fit_of(found).answer is found
    assert fit_of(path).plan == fit_of(str(path)).plan == found.plan


def test_something_else_is_refused(tmp_path: Path) -> None:
    other: Any = {"micro_batch_size": 2}
    with pytest.raises(UsageError, match="found a dict as plan"):
        answer_of(other)
    with pytest.raises(PlanFileError):
        answer_of(tmp_path / "missing.yaml")
