"""DataAnswers: substitutes for results that depend on data, which fake tensors do not have."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from autofit.core.errors import Untraceable
from autofit.torch_internals import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, schema_of
from autofit.tracing.cuda.results import known

aten = torch.ops.aten
INDEXED = frozenset((aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default))
NUMBER = aten._local_scalar_dense.default
"""The operator that `.item()` and conditions run."""
UNLIKE = {
    aten.cumprod.default: "the gradient of a cumulative product is computed in another way for real tensors than here",
}
"""Operators whose backward code is different for tensor subclasses (`cumprod_backward` in FunctionsManual.cpp)."""
MOST_ANSWERS = 5000
"""Maximum number of answers in a trace. A loop that waits for a condition to become false would otherwise never end."""


class DataAnswers:
    """Runs operators. For those whose result depends on data, returns the largest possible result.

    A condition (`if tensor:`, an assertion that values are finite) is true. A floating-point number is 1. An integer is
    not answered: it may be a size, and any guess could be too small.

    Args:
        conditions: False to answer conditions with False, and numbers with 0.

    Attributes:
        given: number of answers given.
        decided: whether one of them was a condition or a number, which may decide what runs.
    """

    def __init__(self, *, conditions: bool = True) -> None:
        self.given, self.decided, self._conditions = 0, False, conditions

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result of an operator.

        Raises:
            DataDependentOutputException: the result depends on data and has no sound answer.
            DynamicOutputShapeException: the size of the result depends on data and has no known bound.
            Untraceable: the gradient would be traced wrongly.
        """
        if func in UNLIKE and torch.is_grad_enabled() and args[0].requires_grad:
            raise Untraceable(UNLIKE[func], func.name())
        # Fake tensors have no value to return; running the operator just to see it fail takes much longer.
        is_unknown = func is NUMBER and isinstance(args[0], FakeTensor) and args[0].constant is None
        if is_unknown and (found := self._answer(func, args, kwargs)) is not None:
            return found
        if _writes_only(func) and all(isinstance(each, FakeTensor) and each.constant is None for each in args[0]):
            return None
        if (found := known(func, args)) is not None:
            return found
        try:
            return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            found = self._answer(func, args, kwargs)
            if found is None:
                raise
        return found

    def _answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        answer = BOUNDS.get(func)
        if answer is None or self.given >= MOST_ANSWERS:
            return None
        found = answer(func, args, kwargs)
        self.given += found is not None
        if not isinstance(found, (bool, float)):
            return found
        self.decided = True
        return type(found)(self._conditions)


@cache
def _writes_only(func: Any) -> bool:
    """Returns whether an operator on lists of tensors only writes into them, so that fake tensors stay as they are.

    Otherwise, most of the time to trace an optimizer's step would be spent on each tensor of these lists.
    """
    return func.name().startswith("aten::_foreach_") and not schema_of(func).returns


def _number(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | float | None:
    dtype = args[0].dtype
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else None


def _all_distinct(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    found: torch.Tensor = args[0]
    inverse = found.new_empty(found.shape if len(args) > 2 and args[2] else (0,), dtype=torch.int64)
    counts = found.new_empty((found.numel(),) if len(args) > 3 and args[3] else (0,), dtype=torch.int64)
    return found.new_empty((found.numel(),)), inverse, counts


def _indexed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(args[0], list(_as_positions(args[1])), *args[2:], **kwargs)


def _as_positions(indices: Sequence[torch.Tensor | None]) -> Iterator[torch.Tensor | None]:
    """Yields the indices, with each mask replaced by the positions that it selects if it selects everything."""
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            yield from (
                torch.empty((index.numel(),), dtype=torch.int64, device=index.device) for _ in range(index.dim())
            )
        else:
            yield index


BOUNDS: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    NUMBER: _number,
    aten.equal.default: lambda func, args, kwargs: True,
    aten.nonzero.default: lambda func, args, kwargs: args[0].new_empty(
        (args[0].numel(), args[0].dim()), dtype=torch.int64
    ),
    aten.masked_select.default: lambda func, args, kwargs: args[0].new_empty((args[0].numel(),)),
    aten._unique2.default: _all_distinct,
    **dict.fromkeys(INDEXED, _indexed),
}
