import torch

from autofit.tracing.cuda.results import laid_out
from tests.tracing.measured import meta, taken

aten = torch.ops.aten


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
