"""A weighing says itself as an expression, and is read back without being evaluated."""

import pytest

from autofit.core.errors import PlanFileError
from autofit.workloads.micro_batch_weights import SUM, Weighing

SAID = [
    (Weighing("['labels']", ignored=-100), "batch['labels'] != -100"),
    (Weighing("['labels']", shifted=True, ignored=-100), "batch['labels'][..., 1:] != -100"),
    (Weighing("[1]['mask']", ignored=0), "batch[1]['mask'] != 0"),
    (Weighing(".targets.lengths"), "batch.targets.lengths"),
    (Weighing("", ignored=0), "batch != 0"),
    (SUM, "1"),
]


@pytest.mark.parametrize(("weighing", "text"), SAID)
def test_it_is_said_and_read_back(weighing: Weighing, text: str) -> None:
    assert str(weighing) == text
    assert Weighing.parse(text) == weighing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "batch[__import__('os')]",
        "batch['a'].sum()",
        "batch['labels'] != -100; import os",
        "batch['labels'] != -100\nimport os",
        "batch['a\\'] + ['b']",
        "batch[-1]",
        "other['labels']",
    ],
)
def test_nothing_else_is_read(text: str) -> None:
    assert Weighing.parse(text) is None


def test_settings_that_say_something_else_are_refused() -> None:
    assert Weighing.of({}) is None
    assert Weighing.of({"weighing": "batch[1] != 255"}) == Weighing("[1]", ignored=255)
    with pytest.raises(PlanFileError, match=r"weighing: 'exit\(\)'; expected the entries of a batch"):
        Weighing.of({"weighing": "exit()"})


def test_the_way_to_the_tensor_is_cut_at_each_container() -> None:
    assert Weighing("[1]['a.b[0]'].mask").steps == ("[1]", "['a.b[0]']", ".mask")
