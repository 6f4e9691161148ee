import math
from typing import Any

import pytest
import torch

from autofit.tracing.cuda.results import first, known, laid_out

aten = torch.ops.aten
NORM, BACKWARD = aten.native_batch_norm.default, aten.native_batch_norm_backward.default
LAYER_NORM, LAYER_NORM_BACKWARD = aten.native_layer_norm.default, aten.native_layer_norm_backward.default
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def images(dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    return torch.empty(4, 8, 6, 5, dtype=dtype, device="meta").contiguous(memory_format=layout)


def forward(x: torch.Tensor, training: bool = True) -> tuple[Any, ...]:
    weight = torch.empty(8, device=x.device)
    return x, weight, weight, weight, weight, training, 0.1, 1e-5


def backward(gradient: torch.Tensor, x: torch.Tensor, training: bool = True) -> tuple[Any, ...]:
    weight = torch.empty(8, device=x.device)
    return gradient, x, weight, weight, weight, weight, weight, training, 1e-5, [True, True, True]


def described(out: Any) -> list[Any]:
    return [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in out]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_batch_norm_known_beforehand_is_what_torch_finds(dtype: torch.dtype, layout: torch.memory_format) -> None:
    x = images(dtype, layout)
    for operator, args in ((NORM, forward(x)), (BACKWARD, backward(torch.empty_like(x), x))):
        assert described(known(operator, args)) == described(operator(*args))


@pytest.mark.parametrize(("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_the_operators_of_a_batch_norm_over_ranks_have_sums_per_channel_and_images(
    dtype: torch.dtype, wide: torch.dtype
) -> None:
    x, sums = images(dtype, torch.channels_last), torch.empty(8, device="meta")
    gathered = [aten.batch_norm_stats.default, aten.batch_norm_gather_stats_with_counts.default]
    for operator, count in (*zip(gathered, (2, 2), strict=True), (aten.batch_norm_backward_reduce.default, 4)):
        assert described(known(operator, (x, sums))) == [((8,), wide, (1,))] * count
    elements = (aten.batch_norm_elemt.default, (x, sums)), (aten.batch_norm_backward_elemt.default, (x, x, sums))
    for operator, args in elements:
        assert described([known(operator, args)]) == described([x])


def test_a_layer_norm_gives_rows_whatever_its_arguments_are() -> None:
    x, weight = torch.empty(4, 8, 6, device="meta").transpose(1, 2), torch.empty(8, device="meta")
    normed, mean, deviation = laid_out(
        LAYER_NORM, (x, [8], weight, weight, 1e-5), LAYER_NORM(x, [8], weight, weight, 1e-5)
    )
    assert normed.is_contiguous()
    gradient = torch.empty(4, 8, 1, device="meta").expand(4, 8, 6).transpose(1, 2)
    args = (gradient, x, [8], mean, deviation, weight, weight, [True, True, True])
    plain = LAYER_NORM_BACKWARD(*args)
    assert laid_out(LAYER_NORM_BACKWARD, args, plain)[0].is_contiguous()
    assert described(laid_out(LAYER_NORM_BACKWARD, args, plain)[1:]) == described(plain[1:])
    assert laid_out(LAYER_NORM_BACKWARD, args, (None, *plain[1:]))[0] is None


def test_what_is_less_simple_is_not_known() -> None:
    x, rows = images(torch.float32, LAYOUTS[1]), images(torch.float32, LAYOUTS[0])
    assert known(NORM, forward(x, training=False)) is None
    assert known(BACKWARD, backward(x, x, training=False)) is None
    assert known(BACKWARD, backward(rows, x)) is None
    assert known(NORM, forward(torch.empty(4, 8, 6, 5))) is None  # a CPU keeps other types
    assert known(aten.relu.default, (x,)) is None


def test_all_but_the_first_are_released_from_the_front() -> None:
    released: list[str] = []

    class Result:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            released.append(self.name)

    results: Any = [Result("a"), Result("b"), Result("c")]  # anything with a lifetime
    kept: Any = first(results)
    assert (kept.name, released) == ("a", ["b", "c"])


@pytest.mark.parametrize(
    ("left", "right", "shape"),
    [
        ((256, 128), (4, 128, 512), (256, 512)),
        ((128, 256), (256, 512), (4, 128, 512)),
        ((4, 128, 64), (64, 256), (128, 256)),
        ((256, 128), (4, 128, 30), (256, 30)),
    ],
)
def test_a_product_by_groups_in_float32(left: tuple[int, ...], right: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """B 17: Mixtral of transformers, which could not be traced for "Expected inputs of BF16 type"."""
    offsets = torch.empty(4, dtype=torch.int32, device="meta")
    found = known(
        aten._grouped_mm.default, (torch.empty(left, device="meta"), torch.empty(right, device="meta"), offsets)
    )
    assert found.shape == shape
    rows = math.prod(shape[:-1])
    assert found.untyped_storage().nbytes() == rows * (-(-shape[-1] // 4) * 4) * 4, (
        "rows begin at multiples of 16 bytes"
    )
    half = torch.empty(left, device="meta", dtype=torch.bfloat16)
    assert known(aten._grouped_mm.default, (half, half, offsets)) is None
