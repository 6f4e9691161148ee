"""Autocast on the stand-in: operators convert their arguments to the same types as under autocast on CUDA.

Source: aten/src/ATen/autocast_mode.h of torch 2.11 and 2.13.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from autofit.torch_internals import has_kernel, without_dispatch
from autofit.tracing.operation_count import tensors_in

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
LOW = """
linear matmul mm bmm addmm baddbmm addmv mv addbmm addr chain_matmul conv1d conv2d conv3d convolution _convolution
_convolution.deprecated conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input einsum prelu
linalg_vecdot linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
"""
"""Operators computed in the precision of autocast."""
FULL = """
layer_norm native_layer_norm group_norm rms_norm nll_loss nll_loss2d mse_loss l1_loss smooth_l1_loss huber_loss
soft_margin_loss kl_div poisson_nll_loss binary_cross_entropy_with_logits cosine_embedding_loss hinge_embedding_loss
margin_ranking_loss triplet_margin_loss multilabel_margin_loss multi_margin_loss cosine_similarity exp log log2
log10 log1p expm1 rsqrt reciprocal pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus cdist pdist dist renorm
logsumexp erfinv acos asin cosh tan sinh frobenius_norm.dim nuclear_norm nuclear_norm.dim
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
_upsample_bilinear2d_aa _upsample_bicubic2d_aa
"""
"""Operators computed in float32."""
WIDEST = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot
"""
"""Operators computed in the widest type among their arguments."""
SUMS = """
sum sum.dim_IntList prod prod.dim_int cumsum cumprod linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
"""
"""Operators whose result is float32 for any argument type."""
NORMS = ("norm.Scalar", "norm.ScalarOpt_dim")
"""Norms whose result is float32 for any argument type; they run as overloads with a `dtype` argument."""
KEY = "AutocastPrivateUse1"
"""The dispatch key of autocast on the stand-in device."""
REFUSED = "binary_cross_entropy"
"""Operator for which autocast raises an error."""


def register(library: Any, device_type: str) -> None:
    """Registers the autocast kernels for a device of the PrivateUse1 key in `library`."""
    autocast = _Autocast(device_type)
    torch.clear_autocast_cache = autocast.clear
    for names, dtype_of in ((LOW, autocast.low), (FULL, lambda *args: torch.float32), (WIDEST, _widest)):
        for name, operator in _named(names):
            library.impl(name, autocast.converting(operator, dtype_of), KEY)
    for name, operator in _named(SUMS):
        library.impl(name, autocast.summing(operator), KEY)
    for name in NORMS:
        library.impl(name, autocast.norm, KEY)
    library.impl(REFUSED, _refuse, KEY)
    library.impl("softmax.int", autocast.softmax(aten._softmax.default), KEY)
    library.impl("log_softmax.int", autocast.softmax(aten._log_softmax.default), KEY)


class _Autocast:
    """Kernels that convert arguments like autocast on CUDA, with a cache of converted weights."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._weights: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        self._forget = torch.clear_autocast_cache

    def clear(self) -> None:
        """Empties the cache. torch calls it when the outermost autocast context is left."""
        self._forget()
        self._weights.clear()

    def low(self, *args: Any) -> torch.dtype:
        """Returns the current precision of autocast."""
        return torch.get_autocast_dtype(self._device_type)

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Returns `value` with its floating-point tensors on this device converted to `dtype`."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.cast(each, dtype) for each in value)
        if (
            not isinstance(value, torch.Tensor)
            or value.device.type != self._device_type
            or not value.is_floating_point()
        ):
            return value
        if value.dtype in (dtype, torch.float64):
            return value
        if not (value.requires_grad and value.is_leaf and value.dtype is torch.float32 and dtype in HALF):
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self._weights:
            self._weights[key] = (value, value.to(dtype))
        return self._weights[key][1]

    def converting(self, operator: Any, dtype_of: Callable[..., torch.dtype]) -> Callable[..., Any]:
        """Returns a kernel that runs `operator` on arguments converted to the type that `dtype_of` returns."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with without_dispatch(KEY):
                dtype = dtype_of(*args)
                named = {name: self.cast(value, dtype) for name, value in kwargs.items()}
                # In reverse order, in which torch's compiler evaluates the arguments of a call.
                converted = [self.cast(value, dtype) for value in reversed(args)]
                return operator(*reversed(converted), **named)

        return kernel

    def softmax(self, operator: Any) -> Callable[..., Any]:
        """Returns the kernel of a softmax. It reads float16 and writes float32; other types are converted before."""

        def kernel(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
            with without_dispatch(KEY):
                direct = x.dtype is torch.float16 and dtype in (None, torch.float32)
                return operator(x if direct else x.to(dtype or torch.float32), dim, direct)

        return kernel

    def norm(self, x: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
        """Runs a norm whose result is float32, without converting its argument."""
        with without_dispatch(KEY):
            if dim is None:
                return aten.norm.ScalarOpt_dtype(x, p, dtype=torch.float32)
            return aten.norm.ScalarOpt_dim_dtype(x, p, dim, keepdim, dtype=torch.float32)

    def summing(self, operator: Any) -> Callable[..., Any]:
        """Returns the kernel of a sum. Its result is float32 unless another type is requested."""

        def kernel(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
            with without_dispatch(KEY):
                wide = torch.float32 if dtype is None and args[0].is_floating_point() else dtype
                return operator(*args, dtype=wide, **kwargs)

        return kernel


def _named(names: str) -> Iterator[tuple[str, Any]]:
    """Yields the operators of a list with their names, except those that this torch's autocast does not convert."""
    for name in names.split():
        base, _, overload = name.partition(".")
        if converts(f"aten::{name}"):
            yield name, getattr(getattr(aten, base), overload or "default")


def converts(name: str) -> bool:
    """Returns whether autocast on CUDA has a kernel for an operator. This also works in builds without CUDA."""
    return has_kernel(name, "AutocastCUDA")


def _refuse(*args: Any) -> Any:
    raise RuntimeError(f"{REFUSED} is unsafe to autocast: use binary_cross_entropy_with_logits")


def _widest(*args: Any) -> torch.dtype:
    types = [each.dtype for each in tensors_in(args) if each.is_floating_point()]
    wide = torch.float32 in types or not types or any(dtype not in HALF for dtype in types)
    return torch.float32 if wide else types[0]
