"""The options of a call become one record, and a wrong value names its argument."""

import pytest

from autofit.api import options_of
from autofit.core.errors import SpaceError, UsageError
from autofit.core.objective import Objective
from autofit.workloads.factory import record_of


def test_a_single_name_is_a_list_of_one() -> None:
    options = options_of(strategies="batching", without="precision", pinned={"precision": "bf16", "compile": "no"})
    assert (options.strategies, options.without) == (("batching",), ("precision",))
    assert options.pinned == {"precision": "bf16", "compile": "no"}
    assert options_of().strategies is None


def test_a_wrong_value_names_its_argument() -> None:
    with pytest.raises(UsageError, match=r"^numerics is 'some': .*See autofit\.tune"):
        options_of(numerics="some")
    with pytest.raises(UsageError, match=r"^pinned is "):
        options_of(pinned={"precision": [1]})  # type: ignore[dict-item]  # the point of the test
    with pytest.raises(UsageError, match=r"^objective is 'words'"):
        record_of(Objective, unit="words")


def test_an_unknown_name_is_known_without_a_model() -> None:
    with pytest.raises(SpaceError, match=r"unknown strategy 'batchng'\. Did you mean 'batching'\?"):
        options_of(strategies="batchng")
    with pytest.raises(SpaceError, match=r"unknown strategy 'precison'\. Did you mean 'precision'\?"):
        options_of(without=["precison"])
    with pytest.raises(SpaceError, match=r"unknown knob 'precison'\. Did you mean 'precision'\?"):
        options_of(pinned={"precison": "bf16"})
