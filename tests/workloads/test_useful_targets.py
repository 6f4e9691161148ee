"""What counts in a batch is found, counted, and shared out to micro batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.workloads.micro_batch_weights import SUM, Weighing
from autofit.workloads.useful_targets import candidates, count, ignore_index_of, may_differ, unevenness, weights_of


@dataclass
class Pair:
    inputs: torch.Tensor
    targets: torch.Tensor


LABELS = torch.tensor([[5, 6, -100, -100], [5, 6, 7, -100]])


@pytest.mark.parametrize(
    ("batch", "weighing", "number"),
    [
        ({"labels": LABELS}, Weighing("['labels']", ignored=-100), 5),
        ({"labels": LABELS}, Weighing("['labels']", shifted=True, ignored=-100), 3),
        ((torch.zeros(2), LABELS), Weighing("[1]", ignored=-100), 5),
        (Pair(torch.zeros(2), LABELS), Weighing(".targets", ignored=-100), 5),
        ({"lengths": torch.tensor([3, 9])}, Weighing("['lengths']"), 12),
        ({"padding": torch.tensor([[False, True], [True, True]])}, Weighing("['padding']", ignored=1), 1),
    ],
)
def test_what_counts_is_counted(batch: Any, weighing: Weighing, number: int) -> None:
    assert float(count(weighing, batch)) == number
    assert weighing in candidates(batch, 2)


@pytest.mark.parametrize("batch", [{"input_ids": LABELS}, LABELS, (LABELS,), {"labels": [1, 2]}])
def test_a_batch_without_the_tensor_is_refused(batch: Any) -> None:
    with pytest.raises(WorkloadError, match=r"without batch\['labels'\] != -100, by which the plan weights"):
        count(Weighing("['labels']", ignored=-100), batch)


def test_shares_sum_to_one_and_a_part_without_any_has_none() -> None:
    parts = [{"labels": row[None]} for row in (*LABELS, torch.full((4,), -100))]
    weighing = Weighing("['labels']", ignored=-100)
    assert weights_of(weighing, parts) == [2 / 5, 3 / 5, 0]
    assert weights_of(weighing, parts[2:]) == [1.0]
    assert weights_of(weighing, [parts[2], parts[2]]) == [0.5, 0.5]


def test_micro_batches_of_a_sum_are_added_up() -> None:
    assert weights_of(SUM, [torch.ones(3), torch.ones(1)]) == [1.0, 1.0]


def test_labels_and_what_torch_leaves_out_come_first() -> None:
    found = candidates({"input_ids": LABELS.abs() % 100, "attention_mask": (LABELS > 0).long(), "labels": LABELS}, 2)
    assert found[:2] == [Weighing("['labels']", shifted, -100) for shifted in (False, True)]
    assert Weighing("['attention_mask']", ignored=0) in found


def test_padding_of_any_value_is_found_at_the_ends_of_rows() -> None:
    ids = torch.tensor([[31, 7, 8, 50256], [31, 50256, 50256, 50256]])
    assert Weighing("['ids']", ignored=50256) in candidates({"ids": ids}, 2)


def test_images_and_other_numbers_count_for_nothing() -> None:
    assert candidates({"pixels": torch.randn(4, 3, 8, 8), "class_weights": torch.rand(7)}, 4) == []


def test_batches_differ_in_how_uneven_their_samples_are() -> None:
    even = {"labels": torch.tensor([[1, 2, -100], [1, 2, -100]]), "x": torch.randn(2, 3)}
    uneven = {"labels": torch.tensor([[1, 2, 3], [1, -100, -100]]), "x": torch.randn(2, 3)}
    masked = {"mask": torch.tensor([[True, False], [True, True]])}
    assert unevenness(even, 2) == 0
    assert unevenness(uneven, 2) == pytest.approx(2 / 3)
    assert unevenness(masked, 2) == 0.5


@pytest.mark.parametrize(
    ("loss_fn", "index"),
    [
        (nn.CrossEntropyLoss(ignore_index=7), 7),
        (nn.CrossEntropyLoss(), -100),
        (partial(F.cross_entropy, ignore_index=3), 3),
        (F.cross_entropy, None),
        (nn.MSELoss(), None),
    ],
)
def test_the_ignored_index_of_a_loss_is_known(loss_fn: Any, index: int | None) -> None:
    assert ignore_index_of(loss_fn) == index


def test_a_value_that_a_type_cannot_hold_is_never_equal() -> None:
    labels = torch.tensor([[156, 1], [2, 3]], dtype=torch.uint8)
    assert not any(found.ignored == -100 for found in candidates([labels], 2))
    assert count(Weighing("[0]", ignored=-100), [labels]) == 4
    assert unevenness([labels], 2) == 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_type_are_counted(dtype: torch.dtype) -> None:
    labels = torch.tensor([[3, 0], [2, 3]]).to(dtype)
    assert Weighing("[0]", ignored=0) in candidates([labels], 2)
    assert count(Weighing("[0]", ignored=0), [labels]) == 3
    assert may_differ([labels], 2)


@pytest.mark.parametrize(
    "odd",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2)] * 4, layout=torch.jagged),
        lambda: torch.full((4, 6), 3.0).to(torch.float8_e4m3fn),
    ],
    ids=["sparse", "csr", "nested", "float8"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_tensors_of_other_kinds_do_not_hide_the_labels(odd: Callable[[], torch.Tensor]) -> None:
    labels = torch.tensor([[1, -100]] * 4)
    assert Weighing("[1]", ignored=-100) in candidates([odd(), labels], 4)
    assert may_differ([odd(), labels], 4)
    assert unevenness([odd(), labels], 4) == 0
