"""The user's arguments become records, or a message that names the argument."""

import pytest

from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.probing.options import options_of, record_of


def test_arguments_become_options() -> None:
    found = options_of("20GiB", "exact", ["batching", "precision"], 3, cold=True)
    assert (found.memory_budget, found.numerics, found.strategies) == ("20GiB", "exact", ("batching", "precision"))
    assert (found.seed, found.cold, found.enforce) == (3, True, False)
    assert options_of(None, "mixed", "batching", 0).strategies == ("batching",)  # one name
    assert options_of(None, "mixed", None, 0).strategies is None


def test_a_value_that_is_not_allowed_is_named() -> None:
    with pytest.raises(UsageError, match=r"numerics is 'bold': Input should be 'exact', 'mixed' or 'any'"):
        options_of(None, "bold", None, 0)
    with pytest.raises(UsageError, match=r"objective is 'words'"):
        record_of(Objective, unit="words")
