"""What the caller wants of a search is checked before anything is opened."""

from typing import Any

import pytest

from autofit.core.errors import UsageError
from autofit.search.request import Request


def test_an_unknown_searcher_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"unknown searcher 'quick'; expected one of"):
        Request(searcher="quick")


@pytest.mark.parametrize("steps", [0, -3, 1.5, True, "many"])
def test_planned_steps_that_are_no_number_of_steps_are_refused_at_once(steps: Any) -> None:
    with pytest.raises(UsageError, match=f"found planned_steps={steps!r}; expected"):
        Request(planned_steps=steps)
