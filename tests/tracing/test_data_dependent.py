from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from autofit.core.errors import Untraceable
from autofit.tracing.data_dependent import DataAnswers
from autofit.tracing.recorder import Recorder


@pytest.fixture
def answers() -> Iterator[DataAnswers]:
    given = DataAnswers()
    with FakeTensorMode(), Recorder("cpu", given):
        yield given


def test_a_condition_is_true(answers: DataAnswers) -> None:
    assert bool(torch.ones(3).sum() > 0)
    assert torch.isfinite(torch.zeros(3)).all()
    assert answers.given == 2


def test_a_floating_number_is_one(answers: DataAnswers) -> None:
    assert torch.rand(3).sum().item() == 1.0


def test_a_whole_number_is_not_guessed(answers: DataAnswers) -> None:
    lengths = torch.arange(3) * 2
    with pytest.raises(DataDependentOutputException):
        lengths.max().item()
    assert answers.given == 0


def test_a_mask_selects_all(answers: DataAnswers) -> None:
    x = torch.rand(4, 5)
    assert x[x > 0].shape == (20,)
    assert torch.nonzero(x).shape == (20, 2)
    assert torch.masked_select(x, x > 0).shape == (20,)
    assert answers.given == 3


def test_a_mask_over_rows_selects_all_rows(answers: DataAnswers) -> None:
    x = torch.rand(4, 5)
    assert x[x[:, 0] > 0].shape == (4, 5)


def test_writing_through_a_mask_is_possible(answers: DataAnswers) -> None:
    x = torch.rand(4, 5)
    x[x > 0] = torch.rand(20)
    assert x.shape == (4, 5)


def test_all_values_may_be_distinct(answers: DataAnswers) -> None:
    values, inverse, counts = torch.unique(torch.rand(4, 5), return_inverse=True, return_counts=True)
    assert (values.shape, inverse.shape, counts.shape) == ((20,), (4, 5), (20,))


def test_a_size_without_a_bound_is_not_answered(answers: DataAnswers) -> None:
    with pytest.raises((DynamicOutputShapeException, DataDependentOutputException)):
        torch.repeat_interleave(torch.arange(3))


def test_what_does_not_depend_on_data_is_not_counted(answers: DataAnswers) -> None:
    assert (torch.rand(2, 3) @ torch.rand(3, 4)).shape == (2, 4)
    assert answers.given == 0


def test_a_number_that_lists_of_operators_count_up_stays_known(answers: DataAnswers) -> None:
    steps, unknown = [torch.tensor(0.0)], [torch.rand(3)]
    torch._foreach_add_(steps, 1)
    torch._foreach_add_(unknown, 1)
    assert (steps[0].item(), answers.given) == (1.0, 0)
    assert (unknown[0].sum().item(), answers.given) == (1.0, 1)


def test_an_operator_whose_gradient_would_be_traced_wrongly_is_refused(answers: DataAnswers) -> None:
    """Row `cumprod`: 19 % too low under autocast."""
    with pytest.raises(Untraceable, match=r"cumulative product.*aten::cumprod"):
        torch.rand(4, 5, requires_grad=True).cumprod(1)
    assert torch.rand(4, 5).cumprod(1).shape == (4, 5)
    with torch.no_grad():
        assert torch.rand(4, 5, requires_grad=True).cumprod(1).shape == (4, 5)
