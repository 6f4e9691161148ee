"""In place: results that torch's own code writes into their first operand, unless tensors are subclasses.

Much of the autograd engine's code checks `areAnyTensorSubclassLike` and, if true, works out of place. It is always true
under a dispatch mode, so fake tensors need a copy that plain tensors do not. Sources, the same in torch 2.11 and 2.13:
torch/csrc/autograd/FunctionsManual.cpp (`value_selecting_reduction_backward`, `index_backward`,
`masked_select_backward`, ...), aten/src/ATen/native/TensorAdvancedIndexing.cpp (`gather_backward`, `take_backward`) and
Loss.cpp (`binary_cross_entropy_with_logits_backward`).
"""

from typing import Any

import torch

from autofit.torch_internals import current_node

aten = torch.ops.aten
SCATTERING = frozenset((
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_add.default, aten.index_put.default,
    aten.put.default, aten.masked_scatter.default, aten.index_fill.int_Scalar,
))  # fmt: skip
"""Operators that the code above runs in place on zeros that it has just made. On other operands it makes a copy."""
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
CHAINED = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.logical_and.default))
"""Operators that compute the gradients of `STEPWISE` nodes step by step."""
STEPWISE = ("BinaryCrossEntropyWithLogitsBackward0", "MaxBackward1", "MinBackward1")
"""Autograd nodes whose gradient is computed by a chain of in-place operators."""
LINKS = ("aten::isnan", "aten::add.Tensor", "aten::add.Scalar", "aten::sub.Tensor", "aten::mul.Tensor", "aten::sigmoid")
"""Operators that make the first operand of a step in such a chain, if a step made it."""


def replaces(func: Any, args: tuple[Any, ...], maker: str) -> bool:
    """Returns whether an operator of a backward pass writes its result into its first operand if tensors are plain.

    Args:
        func: the operator, one of `SCATTERING` or `CHAINED`.
        args: its arguments.
        maker: name of the operator that allocated the first operand.
    """
    node = current_node()
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False  # a custom autograd function runs exactly as written
    if func in SCATTERING:
        return maker in ZEROS
    chained = func in CHAINED and maker in LINKS and node is not None and node.name() in STEPWISE
    return chained and isinstance(args[1], torch.Tensor)
