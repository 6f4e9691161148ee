"""What operators take inside one call, against the allocations of torch 2.11's CUDA code for the same arguments."""

from typing import Any

import pytest
import torch

from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.results import is_channels_last, laid_out, results
from autofit.tracing.cuda.temporaries import temporary_steps
from tests.tracing.measured import meta, taken

aten = torch.ops.aten
CHIP = Chip()
X = (16384, 512)
ALL = 33554432
"""Bytes of one number for each element of that shape."""


def heads(time: int, width: int, dtype: torch.dtype, *, by_time: bool = True) -> torch.Tensor:
    if by_time:
        return torch.empty(8, time, 4, width, dtype=dtype, device="meta").transpose(1, 2)
    return torch.empty(8, 4, time, width, dtype=dtype, device="meta")


def peak(steps: tuple[int | None, ...]) -> int:
    held, now, most = [], 0, 0
    for step in steps:
        if step is None:
            continue
        if step >= 0:
            held.append(step)
        now += step if step >= 0 else -held[~step]
        most = max(most, now)
    assert now == 0, "everything is given back"
    return most


def test_flash_backward() -> None:
    x = heads(256, 64, torch.bfloat16)
    steps = temporary_steps(CHIP, aten._scaled_dot_product_flash_attention_backward.default, (x, x, x, x, x), (x, x, x))
    assert [step for step in steps if step is not None] == [32768, 2097152, ~1, ~0]


def test_flash_backward_copies_what_does_not_lie_by_time() -> None:
    x, y = heads(256, 64, torch.bfloat16), heads(256, 64, torch.bfloat16, by_time=False)
    steps = temporary_steps(CHIP, aten._scaled_dot_product_flash_attention_backward.default, (y, x, x, x, y), (x, x, x))
    assert peak(steps) == 4227072


@pytest.mark.parametrize(
    ("dtype", "queries", "keys", "width", "floats"),
    [
        (torch.float32, 256, 256, 64, 16400),
        (torch.float32, 100, 1000, 96, 16392),
        (torch.float32, 1024, 1024, 160, 196704),
        (torch.bfloat16, 256, 64, 32, 16400),
        (torch.bfloat16, 1024, 1024, 128, 131104),
        (torch.bfloat16, 256, 256, 160, 180248),
        (torch.bfloat16, 100, 1000, 256, 229392),
    ],
)
def test_efficient_backward(dtype: torch.dtype, queries: int, keys: int, width: int, floats: int) -> None:
    batch = 1 if queries == 1024 else 8
    q, k = (heads(time, width, dtype)[:batch] for time in (queries, keys))
    steps = temporary_steps(
        CHIP, aten._scaled_dot_product_efficient_attention_backward.default, (q, q, k, k), (q, k, k)
    )
    assert max(step for step in steps if step is not None) in (4 * 4 * batch * floats, 4 * q.numel())
    assert 4 * 4 * batch * floats in steps


def test_efficient_backward_in_float32_makes_the_row_sums_itself() -> None:
    x = heads(256, 64, torch.float32)
    steps = temporary_steps(
        CHIP, aten._scaled_dot_product_efficient_attention_backward.default, (x, x, x, x), (x, x, x)
    )
    assert steps == (None, 2097152, 32768, 32768, ~1, ~0, 2099200, ~2, ~3)


@pytest.mark.parametrize(("ids", "rows", "last"), [(8192, 1000, 5587968), (8192, 50257, 27681792), (4096, 1024, 0)])
def test_embedding_backward(ids: int, rows: int, last: int) -> None:
    gradient = torch.empty(ids, 768, device="meta")
    indices = torch.empty(ids, dtype=torch.int64, device="meta")
    steps = temporary_steps(CHIP, aten.embedding_dense_backward.default, (gradient, indices, rows, -1), gradient)
    assert max(step for step in steps if step is not None) == (last or 4402176)
    assert peak(steps) < last + 10 * 8 * ids + 5 * 2**20


def test_a_few_embeddings_need_nothing_but_have_the_same_steps() -> None:
    def steps(count: int) -> tuple[int | None, ...]:
        indices = torch.empty(count, dtype=torch.int64, device="meta")
        gradient = torch.empty(count, 768, device="meta")
        return temporary_steps(CHIP, aten.embedding_dense_backward.default, (gradient, indices, 1024, -1), gradient)

    few, many = steps(1024), steps(4096)
    assert peak(few) == 0
    assert [s is None or s >= 0 for s in few] == [s is None or s >= 0 for s in many]


WEIGHT = torch.empty(64, device="meta")


def test_batch_norm_over_channels_last() -> None:
    x = torch.empty(16, 64, 32, 32, dtype=torch.bfloat16, device="meta").contiguous(memory_format=torch.channels_last)
    forward = temporary_steps(CHIP, aten.native_batch_norm.default, (x, WEIGHT), (x, x, x))
    backward = temporary_steps(CHIP, aten.native_batch_norm_backward.default, (x, x, WEIGHT), (x, x, x))
    assert forward == (65536, 8, ~1, ~0)
    assert backward == (256, 256, None, None, 32768, 8, ~3, ~2, None, ~1, ~0)
    rows = temporary_steps(CHIP, aten.native_batch_norm_backward.default, (x.contiguous(), x, WEIGHT), (x, x, x))
    assert rows == (256, 256, None, None, None, ~1, ~0)


def test_batch_norm_of_images_in_rows_takes_nothing() -> None:
    x = torch.empty(16, 64, 32, 32, dtype=torch.bfloat16, device="meta")
    assert temporary_steps(CHIP, aten.native_batch_norm_backward.default, (x, x, WEIGHT), (x, x, x)) == ()


@pytest.mark.parametrize(
    ("dtype", "weight", "shape", "cudnn"),
    [
        (torch.float32, WEIGHT, (16, 64, 32, 32), True),
        (torch.float16, WEIGHT, (16, 64, 32, 32), True),
        (torch.float16, WEIGHT.half(), (16, 64, 32, 32), False),
        (torch.bfloat16, WEIGHT, (16, 64, 32, 32), False),
        (torch.float32, None, (16, 64, 32, 32), False),
        (torch.float32, WEIGHT, (16384, 64), False),
    ],
)
def test_a_batch_norm_of_cudnns_has_none_of_torchs_buffers(
    dtype: torch.dtype, weight: torch.Tensor | None, shape: tuple[int, ...], cudnn: bool
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    forward = temporary_steps(CHIP, aten.native_batch_norm.default, (x, weight), (x, x, x))
    backward = temporary_steps(CHIP, aten.native_batch_norm_backward.default, (x, x, weight), (x, x, x))
    assert (forward == ()) == (backward == ()) == cudnn
    order = results(aten.native_batch_norm_backward.default, (x, x, weight), (0, 1, 2))
    assert list(order) == ([0, 1, 2] if cudnn else [1, 2, 0])


def test_softmax_backward_multiplies_first() -> None:
    half = torch.empty(2048, 1024, dtype=torch.float16, device="meta")
    full = torch.empty(2048, 1024, device="meta")
    assert (
        peak(temporary_steps(CHIP, aten._softmax_backward_data.default, (full, full, 1, torch.float16), half))
        == 8388608
    )


def test_a_log_softmax_over_a_middle_dimension_copies() -> None:
    x = torch.empty(8, 256, 2000, device="meta").transpose(1, 2)
    assert peak(temporary_steps(CHIP, aten._log_softmax.default, (x, 1, False), x)) == 16384000
    assert peak(temporary_steps(CHIP, aten._log_softmax.default, (x.contiguous(), 1, False), x)) == 0


def test_a_copy_from_the_host_into_other_strides_goes_through_one_piece() -> None:
    host = torch.empty(8, 3, 96, 96)
    there = torch.empty(8, 3, 96, 96, device="meta").contiguous(memory_format=torch.channels_last)
    assert peak(temporary_steps(CHIP, aten._to_copy.default, (host,), there)) == 884736
    assert peak(temporary_steps(CHIP, aten._to_copy.default, (host,), there.contiguous())) == 0


def test_an_operator_without_a_rule_takes_nothing() -> None:
    x = torch.empty(4, device="meta")
    assert temporary_steps(CHIP, aten.relu.default, (x,), x) == ()


def test_results_are_in_the_order_of_their_allocation() -> None:
    assert results(aten.native_dropout.default, (), ("out", "mask")) == ["mask", "out"]
    assert results(aten._scaled_dot_product_efficient_attention.default, (), "olso") == ["o", "l"]
    assert results(aten.native_layer_norm.default, (), ("out", "mean")) == ("out", "mean")


def test_workspaces_follow_chip_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert Chip(capability=(8, 0)).workspaces[0] == 8519680
    assert Chip(capability=(9, 0)).workspaces[0] == 32 * 2**20
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert Chip().workspaces[0] == 32 * 2**20


def test_batch_norm_gives_a_gradient_laid_out_as_its_input() -> None:
    images = torch.empty(4, 8, 16, 16, device="meta").contiguous(memory_format=torch.channels_last)
    gradient = torch.empty(4, 8, 16, 16, device="meta")
    args = (gradient, images)
    out = laid_out(aten.native_batch_norm_backward.default, args, (gradient, None, None))
    assert out[0].is_contiguous(memory_format=torch.channels_last)
    assert laid_out(aten.relu.default, args, gradient) is gradient


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((8, 64, 56, 56), torch.channels_last, (0, 6422528, None, 0, ~2, None, ~1, ~0, None, 3211264, 4, ~4, ~3)),
        ((8, 64, 56, 56), torch.contiguous_format, (0, 0, None, 0, ~2, None, ~1, ~0, None, 0, 0, ~4, ~3)),
        ((16, 64, 112, 112), torch.contiguous_format, (0, 0, None, 0, ~2, None, ~1, ~0, None, 1792, 256, ~4, ~3)),
    ],
)
def test_convolution_backward(
    shape: tuple[int, ...], layout: torch.memory_format, expected: tuple[int | None, ...]
) -> None:
    gradient = torch.empty(shape, device="meta").contiguous(memory_format=layout)
    images, weight = torch.empty(shape[0], 3, 64, 64, device="meta"), torch.empty(shape[1], 3, 3, 3, device="meta")
    args = (gradient, images, weight, None, None, None, None, False, None, 1, [True, True, True])
    assert temporary_steps(CHIP, aten.convolution_backward.default, args, None) == expected


def test_norms_copy_what_is_in_pieces() -> None:
    x = torch.empty(8, 96, 28, 28, device="meta").permute(0, 2, 3, 1)
    assert temporary_steps(CHIP, aten.native_layer_norm.default, (x, [96]), (x,)) == (x.numel() * 4, None, ~0)
    assert peak(temporary_steps(CHIP, aten.native_layer_norm.default, (x.contiguous(), [96]), (x,))) == 0


def test_a_gradient_in_pieces_is_copied_after_the_results_of_a_layer_norm() -> None:
    whole = torch.empty(16, 128, 512, device="meta")
    pieces = torch.empty(16, 512, 128, device="meta").transpose(1, 2)
    for args, expected in (((pieces, whole), (0, 4194304)), ((whole, pieces), (4194304, 0))):
        steps = temporary_steps(CHIP, aten.native_layer_norm_backward.default, (*args, [512]), (whole,))
        assert steps[:3] == (expected[0], None, expected[1])
        assert peak(steps) == 4194304


def test_a_layer_norm_of_many_short_rows_sums_up_by_blocks_of_them() -> None:
    def steps(rows: int, width: int) -> tuple[int | None, ...]:
        x = torch.empty(rows, width, device="meta")
        return temporary_steps(CHIP, aten.native_layer_norm_backward.default, (x, x, [width]), (x, x, x))

    assert steps(163072, 64)[3:7] == (1304576, 1304576, 655360, 4)
    assert steps(10**7, 64)[3] == 4 * 64 * 16384
    assert peak(steps(65536, 64)) == 0
    assert peak(steps(163072, 54 * 32)) == 0
    assert len({len(steps(rows, 64)) for rows in (100, 163072)}) == 1


def test_a_mean_over_pixels_is_a_sum() -> None:
    x = torch.empty(14, 128, 96, 96, device="meta").contiguous(memory_format=torch.channels_last)
    mean = temporary_steps(CHIP, aten.mean.dim, (x, [-1, -2], True), x)
    assert mean == temporary_steps(CHIP, aten.sum.dim_IntList, (x, [2, 3]), x)
    assert peak(mean) > 2**20
    whole = temporary_steps(CHIP, aten.mean.default, (x,), x)
    assert whole == temporary_steps(CHIP, aten.sum.dim_IntList, (x, [0, 1, 2, 3]), x)
    assert peak(whole) > 0


@pytest.mark.parametrize("loss", [aten.mse_loss.default, aten.smooth_l1_loss.default])
def test_the_mean_of_errors_keeps_them_for_a_moment_and_their_room_for_good(loss: object) -> None:
    x, mean = torch.empty(4, 3, 128, 128, device="meta"), torch.empty((), device="meta")
    steps = temporary_steps(CHIP, loss, (x, x), mean)
    assert steps[0] == 786432
    assert 786432 <= peak(steps) <= 786432 + 1024
    made = laid_out(loss, (x, x), mean)
    assert made.shape == ()
    assert made.untyped_storage().nbytes() == 786432


def test_errors_that_are_not_summed_up_are_the_result() -> None:
    x = torch.empty(4, 3, device="meta")
    assert temporary_steps(CHIP, aten.mse_loss.default, (x, x, 0), x) == ()
    assert laid_out(aten.mse_loss.default, (x, x, 0), x) is x


def test_the_gradient_of_a_squared_error_lies_in_rows() -> None:
    x = torch.empty(4, 3, 16, 16, device="meta").contiguous(memory_format=torch.channels_last)
    assert laid_out(aten.mse_loss_backward.default, (x, x, x, 1), x).is_contiguous()


def test_a_convolution_copies_what_does_not_lie_as_its_other_argument() -> None:
    rows = torch.empty(8, 32, 64, 64, device="meta")
    last = rows.contiguous(memory_format=torch.channels_last)
    weight = torch.empty(64, 32, 3, 3, device="meta")
    weight_last = weight.contiguous(memory_format=torch.channels_last)
    convolution = aten.convolution.default
    assert temporary_steps(CHIP, convolution, (rows, weight), rows) == (0, None, 0, ~1, ~0)
    assert temporary_steps(CHIP, convolution, (last, weight_last), rows) == (0, None, 0, ~1, ~0)
    assert temporary_steps(CHIP, convolution, (rows, weight_last), rows) == (4194304, None, 0, ~1, ~0)
    assert temporary_steps(CHIP, convolution, (last, weight), rows) == (0, None, 73728, ~1, ~0)


def test_a_kernel_of_one_pixel_is_in_the_layout_that_its_strides_say() -> None:
    made = torch.empty(3, 32, 1, 1, device="meta")
    assert not is_channels_last(made)
    assert is_channels_last(made.as_strided(made.shape, (32, 1, 32, 32)))
    assert not is_channels_last(torch.empty(8, 1, 4, 4, device="meta"))
    assert not is_channels_last(torch.empty(8, 4, device="meta"))


def test_pooling_copies_what_does_not_lie_as_its_input() -> None:
    rows = torch.empty(8, 16, 32, 32, device="meta")
    gradient = torch.empty(8, 16, 16, 16, device="meta").contiguous(memory_format=torch.channels_last)
    places = torch.empty(8, 16, 16, 16, dtype=torch.int64, device="meta")
    backward = aten.max_pool2d_with_indices_backward.default
    args = (gradient, rows, [2, 2], [2, 2], [0, 0], [1, 1], False, places)
    assert temporary_steps(CHIP, backward, args, rows) == (131072, ~0)
    assert temporary_steps(CHIP, backward, (gradient.contiguous(), *args[1:]), rows) == ()
    assert temporary_steps(CHIP, aten.max_pool2d_with_indices.default, (rows[:, :, ::2], [2, 2]), rows) == (262144, ~0)


def test_counting_what_is_true_converts_it_first() -> None:
    flags, counts = torch.empty(63, 256, dtype=torch.bool, device="meta"), torch.empty(63, 256, dtype=torch.int64)
    assert temporary_steps(CHIP, aten.cumsum.default, (flags, -1), counts) == (129024, ~0)
    assert temporary_steps(CHIP, aten.cumsum.default, (counts, -1), counts) == ()


def test_a_convolution_of_channels_last_gives_channels_last() -> None:
    weight = torch.empty(8, 3, 3, 3, device="meta")
    images, out = torch.empty(2, 3, 16, 16, device="meta"), torch.empty(2, 8, 16, 16, device="meta")
    last = images.contiguous(memory_format=torch.channels_last)
    made = laid_out(aten.convolution.default, (last, weight), out)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert laid_out(aten.convolution.default, (images, weight), out) is out
    back = laid_out(aten.convolution_backward.default, (out, last, weight), (images, None, None))
    assert back[0].is_contiguous(memory_format=torch.channels_last)
    assert back[1:] == (None, None)


def steps_of(func: Any, *args: Any) -> Any:
    return temporary_steps(CHIP, func, args, func(*args))


@pytest.mark.parametrize(
    ("func", "found"),
    [
        (aten.binary_cross_entropy.default, (4, 1728, 4, ~2, ~1, ~0)),
        (aten.soft_margin_loss.default, (4, 1728, 4, ~2, ~1, ~0)),
        (aten.huber_loss.default, (ALL, None, 1728, 4, ~2, ~1, ~0)),
        (aten.binary_cross_entropy_with_logits.default, (ALL, ALL, None, 1728, 4, ~3, ~2, ~1, ~0)),
    ],
)
def test_a_mean(func: Any, found: Any) -> None:
    assert steps_of(func, meta(*X), meta(*X)) == found


@pytest.mark.parametrize("func", [aten.binary_cross_entropy.default, aten.soft_margin_loss.default])
def test_a_mean_keeps_the_room_of_all_elements(func: Any) -> None:
    x = meta(*X)
    assert laid_out(func, (x, x), func(x, x)).untyped_storage().nbytes() == ALL


def test_weights_of_the_positive_class() -> None:
    """Row `bce-logits-pw`."""
    found = steps_of(aten.binary_cross_entropy_with_logits.default, meta(*X), meta(*X), None, meta(512))
    assert found == (ALL, 2048, ALL, ~1, ~2, ALL, None, 1728, 4, ~5, ~4, ~3, ~0)


def test_the_gradient_of_a_soft_margin_is_made_last() -> None:
    found = steps_of(aten.soft_margin_loss_backward.default, torch.empty((), device="meta"), meta(*X), meta(*X), 1)
    assert found == (ALL, ALL, ALL, ~1, ~0, None, ~2)


def test_a_bilinear_form_and_its_gradient() -> None:
    """Row `bilinear`: its gradient is made from a product of all three sizes."""
    x, weight, gradient = meta(16384, 512), meta(16, 512, 512), meta(16384, 16)
    forward = (x, weight, x, [1, 3], [0], [1, 2], [2, 3])
    assert taken(aten._trilinear.default, *forward) == [33554432, 65536]
    backward = (gradient, weight, x, [2, 3], [0], [1, 2], [1, 3])
    assert 17179869184 in taken(aten._trilinear.default, *backward)


def test_distances() -> None:
    rows = meta(4, 512, 512)
    assert taken(aten._cdist_backward.default, meta(4, 512, 512), rows, rows, 1.0, meta(4, 512, 512)) == [2147483648]
    pairs = meta(512 * 511 // 2)
    assert taken(aten._pdist_backward.default, pairs, rows[0], 2.0, pairs) == [535822336]


def test_windows() -> None:
    images, columns = meta(32, 64, 64, 64), meta(32, 576, 4096)
    size = [3, 3], [1, 1], [1, 1], [1, 1]
    assert taken(aten.im2col.default, images, *size) == [33554432]
    made = laid_out(aten.col2im.default, (columns,), aten.col2im.default(columns, [64, 64], *size))
    assert made.shape == images.shape
    assert made.untyped_storage().nbytes() == 301989888, "it is made with the room of the columns"


def test_windows_that_do_not_overlap_need_no_room_but_their_own() -> None:
    assert taken(aten.im2col.default, meta(32, 64, 64, 64), [2, 2], [1, 1], [0, 0], [2, 2]) == []


def test_a_grid() -> None:
    assert taken(aten.affine_grid_generator.default, meta(32, 2, 3), [32, 64, 64, 64], False) == [1572864]
    assert taken(aten.affine_grid_generator.default, meta(8, 3, 4), [8, 3, 64, 64, 64], False) == [33554432]


def test_probabilities_in_half_precision() -> None:
    assert taken(aten.bernoulli.default, meta(8192, 8192, dtype=torch.bfloat16)) == [268435456]
    assert taken(aten.bernoulli.default, meta(8192, 1024)) == []
