"""Which operators the host waits for, with meta tensors as those of an accelerator."""

from typing import Any

import pytest
import torch

from autofit.doctor.waits import MASK, OPERATORS, PAGEABLE, TO_HOST, wait_of

aten = torch.ops.aten
HERE, THERE = torch.ones(3), torch.ones(3, device="meta")
MASKS = torch.ones(3, dtype=torch.bool, device="meta")


def wait(func: Any, *args: object, **kwargs: object) -> str:
    return wait_of(func, args, kwargs, "meta")


@pytest.mark.parametrize("func", OPERATORS)
def test_reading_a_value_or_a_size_waits_on_the_accelerator_alone(func: Any) -> None:
    assert wait(func, THERE) == OPERATORS[func]
    assert wait(func, HERE) == ""


def test_a_mask_decides_a_size_and_indices_do_not() -> None:
    assert wait(aten.index.Tensor, THERE, [MASKS]) == MASK
    assert wait(aten.index.Tensor, THERE, [None, torch.zeros(2, dtype=torch.int64, device="meta")]) == ""
    assert wait(aten.index.Tensor, HERE, [torch.ones(3, dtype=torch.bool)]) == ""


def test_copies_to_the_host_wait_unless_they_are_asynchronous() -> None:
    assert wait(aten._to_copy.default, THERE, device="cpu") == TO_HOST
    assert wait(aten._to_copy.default, THERE, device="cpu", non_blocking=True) == ""
    assert wait(aten._to_copy.default, THERE, dtype=torch.float16) == ""
    assert wait(aten.copy_.default, HERE, THERE) == TO_HOST


def test_copies_to_the_device_wait_for_memory_that_is_not_page_locked() -> None:
    assert wait(aten._to_copy.default, HERE, device="meta", non_blocking=True) == PAGEABLE
    assert wait(aten.copy_.default, THERE, HERE, True) == PAGEABLE
    assert wait(aten.copy_.default, THERE, THERE) == ""


def test_other_operators_do_not_wait() -> None:
    assert wait(aten.add.Tensor, THERE, THERE) == ""
