"""The chunked loss against `F.cross_entropy`: values, gradients, and that the logits never exist as a whole."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from autofit.strategies.deferred_logits import CHUNKS, Product, chunked_cross_entropy

ROWS, FEATURES, CLASSES = 37, 8, 101


def product(dtype: torch.dtype = torch.float64, *, bias: bool = True) -> Product:
    torch.manual_seed(0)
    hidden, weight = torch.randn(ROWS, FEATURES), torch.randn(CLASSES, FEATURES)
    addend = torch.randn(CLASSES).to(dtype).requires_grad_() if bias else None
    return Product(hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), addend, dtype)


def targets() -> torch.Tensor:
    target = torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(1))
    target[3:9] = -100
    return target


def gradients(loss: torch.Tensor, given: Product) -> list[torch.Tensor]:
    leaves = [given.hidden, given.weight, *([] if given.bias is None else [given.bias])]
    upstream = torch.arange(1.0, loss.numel() + 1).view_as(loss).to(loss.dtype)
    return list(torch.autograd.grad(loss, leaves, upstream))


@pytest.mark.parametrize("kind", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", ["plain", "no bias", "smoothed", "weighted", "another ignored class"])
def test_loss_and_gradients_are_those_of_cross_entropy(kind: str, case: str) -> None:
    given, target = product(bias=case != "no bias"), targets()
    weight = torch.rand(CLASSES, dtype=torch.float64) if case == "weighted" else None
    smoothing = 0.1 if case == "smoothed" else 0.0
    ignored = 5 if case == "another ignored class" else -100
    target = target.clamp(min=0) if ignored == 5 else target
    ours = chunked_cross_entropy(given, target, weight, ignored, smoothing, kind)
    theirs = F.cross_entropy(
        F.linear(given.hidden, given.weight, given.bias), target, weight,
        ignore_index=ignored, reduction=kind, label_smoothing=smoothing,
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(gradients(ours, given), gradients(theirs, given), strict=True):
        torch.testing.assert_close(one, other)


def test_all_rows_ignored_give_what_torch_gives() -> None:
    given, target = product(), torch.full((ROWS,), -100)
    assert chunked_cross_entropy(given, target).isnan()
    assert chunked_cross_entropy(given, target, reduction="sum") == 0


def test_no_rows_give_what_torch_gives() -> None:
    given = product()
    empty = replace(given, hidden=given.hidden[:0])
    target = torch.zeros(0, dtype=torch.int64)
    assert chunked_cross_entropy(empty, target).isnan()
    loss = chunked_cross_entropy(empty, target, reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert loss == 0
    assert given.weight.grad is not None
    assert not given.weight.grad.any()


def test_ignored_row_without_a_number_does_not_spoil_the_loss() -> None:
    given, target = product(), targets()
    with torch.no_grad():
        given.hidden[3] = torch.nan
    assert chunked_cross_entropy(given, target).isfinite()


def test_large_logits_do_not_overflow() -> None:
    given = product(torch.float32)
    with torch.no_grad():
        given.hidden.mul_(1e4)
    ours = chunked_cross_entropy(given, targets())
    torch.testing.assert_close(ours, F.cross_entropy(given.value(), targets()))
    assert all(gradient.isfinite().all() for gradient in gradients(ours, given))


def test_frozen_operands_get_no_gradient() -> None:
    given = product()
    given.weight.requires_grad_(False)
    loss = chunked_cross_entropy(given, targets())
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert given.weight.grad is None
    assert given.hidden.grad is not None


def test_graph_that_is_kept_can_be_used_again() -> None:
    given = product()
    loss = chunked_cross_entropy(given, targets())
    first = torch.autograd.grad(loss, given.weight, retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, given.weight)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_close_to_the_true_gradient_as_torch_is(dtype: torch.dtype) -> None:
    exact, given, target = product(torch.float64), product(dtype), targets()
    truth = gradients(F.cross_entropy(exact.value(), target), exact)
    ours = gradients(chunked_cross_entropy(given, target), given)
    theirs = gradients(F.cross_entropy(given.value().float(), target), given)
    for true, one, other in zip(truth, ours, theirs, strict=True):
        assert one.dtype == dtype
        assert (one - true).norm() <= 1.2 * (other - true).norm() + 1e-6


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Notes the number of elements of the largest tensor that an operator returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


def test_no_tensor_has_more_than_the_logits_of_a_chunk() -> None:
    torch.manual_seed(0)
    rows = 64
    given = Product(
        torch.randn(rows, 4).requires_grad_(), torch.randn(CLASSES, 4).requires_grad_(), None, torch.float32
    )
    target = torch.randint(0, CLASSES, (rows,))
    with Largest() as largest:  # type: ignore[no-untyped-call]  # torch has no types here
        chunked_cross_entropy(given, target).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert largest.elements == rows // CHUNKS * CLASSES


@pytest.mark.parametrize("samples", [2, 5])
def test_number_of_chunks_does_not_depend_on_the_batch(samples: int) -> None:
    """Each allocation is then affine in the batch, so that a few traces give all sizes."""
    calls = []
    for count in (samples, 2 * samples):
        hidden = torch.randn(count * 21, 4)
        given = Product(hidden, torch.randn(CLASSES, 4), None, torch.float32, samples=count)
        with Products() as seen:
            chunked_cross_entropy(given, torch.zeros(count * 21, dtype=torch.int64))
        calls.append(seen.rows)
    assert [2 * rows for rows in calls[0]] == calls[1]


class Products(TorchDispatchMode):
    """Notes the rows of each matrix product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.rows.append(out.shape[0])
        return out
