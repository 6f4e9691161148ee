"""A plan in the forms in which a user has one."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.errors import PlanFileError, UsageError
from autofit.fit import Fit
from autofit.integrations.given_plan import fit_of, recommendation_of
from tests.conformance.test_exporters import OWN, recommendation


def test_a_file_a_fit_and_a_recommendation_are_the_same_plan(tmp_path: Path) -> None:
    found = recommendation(OWN.replace(micro_batch_size=2))
    path = tmp_path / "autofit.yaml"
    Fit(found).save(path)
    assert recommendation_of(found) is recommendation_of(Fit(found)) is found
    assert recommendation_of(path) == recommendation_of(str(path)) == found
    given = Fit(found)
    assert fit_of(given) is given
    assert fit_of(found).recommendation is found
    assert fit_of(path).plan == fit_of(str(path)).plan == found.plan


def test_something_else_is_refused(tmp_path: Path) -> None:
    other: Any = {"micro_batch_size": 2}
    with pytest.raises(UsageError, match="found a dict as plan"):
        recommendation_of(other)
    with pytest.raises(PlanFileError):
        recommendation_of(tmp_path / "missing.yaml")
