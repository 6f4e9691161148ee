"""Tally: counts the arithmetic operations and the memory traffic of operators."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch

from autofit.core.work import Work
from autofit.torch_internals import packet_of, schema_of

_log = logging.getLogger("torch.utils.flop_counter")
_level = _log.level
_log.setLevel(logging.ERROR)  # the import below warns if Triton is missing
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop  # noqa: E402

_log.setLevel(_level)

aten = torch.ops.aten
PRECISIONS = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
ON_THE_HOST: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
}
"""Formulas that torch's own table lacks."""


class Tally:
    """Counts the work of a step. The operators need not really be computed.

    Args:
        uncounted: tells of a tensor whether its bytes are left out of the memory traffic. None counts all.

    Attributes:
        complete: whether the operations of every product could be counted.
    """

    def __init__(self, uncounted: Callable[[torch.Tensor], bool] | None = None) -> None:
        self.complete = True
        self._uncounted = uncounted
        self._flops: Counter[str] = Counter()
        self._traffic_bytes = self._operators = 0

    def add(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Counts an operator, unless it only makes a view or allocates memory without writing to it."""
        if _is_free(func):
            return
        operands = [*tensors_in(args), *tensors_in(kwargs.values())]
        results = [one for one in tensors_in((out,)) if not any(one is operand for operand in operands)]
        self._operators += 1
        moved = [one for one in (*operands, *results) if self._uncounted is None or not self._uncounted(one)]
        self._traffic_bytes += sum(one.numel() * one.element_size() for one in moved)
        formula = flop_registry.get(packet_of(func)) or ON_THE_HOST.get(packet_of(func))
        if formula is None:
            return
        try:
            self._flops[_precision(operands)] += int(formula(*args, **kwargs, out_val=out))
        except (AssertionError, TypeError, ValueError, IndexError):  # torch's formulas do not cover every form of call
            self.complete = False

    def work(self, parts: int = 1, times: int = 1) -> Work:
        """Returns the counted work, `times` over, divided by `parts`."""
        return Work(
            flops={precision: times * flops // parts for precision, flops in self._flops.items()},
            traffic_bytes=times * self._traffic_bytes // parts,
            operators=times * self._operators // parts,
        )


@cache
def _is_free(func: Any) -> bool:
    schema, name = schema_of(func), func.name().removeprefix("aten::").partition(".")[0]
    if not (schema.is_mutable or any("Tensor" in str(one.type) for one in schema.returns)):
        return True  # a query, such as for a device or a value
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    unwritten = name.removeprefix("new_").startswith("empty")
    return views or unwritten or func.namespace == "profiler" or name in ("_unsafe_view", "lift_fresh", "detach")


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors among the arguments or results of an operator, also those in its lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)


def _precision(operands: list[torch.Tensor]) -> str:
    dtype = next((one.dtype for one in operands if one.is_floating_point()), torch.float32)
    if dtype is torch.float32 and operands[0].device.type == "cuda":
        # This setting allows tensor cores to round the operands. autofit sets it for convolutions too.
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
    return PRECISIONS.get(dtype, str(dtype).removeprefix("torch."))
