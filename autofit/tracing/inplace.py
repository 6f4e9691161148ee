"""In place: results that torch's own code writes into its first operand, but not where tensors are subclasses.

Much of the autograd engine's code asks `areAnyTensorSubclassLike` and works out of place if so, as it always is where a
dispatch mode is on: fake tensors then take a copy that plain ones do not. torch/csrc/autograd/FunctionsManual.cpp
(`value_selecting_reduction_backward`, `index_backward`, `masked_select_backward`, ...),
aten/src/ATen/native/TensorAdvancedIndexing.cpp (`gather_backward`, `take_backward`) and Loss.cpp
(`binary_cross_entropy_with_logits_backward`), the same in torch 2.11 and 2.13.
"""

from typing import Any

import torch

aten = torch.ops.aten
SCATTERING = frozenset((
    aten.scatter.src, aten.scatter.value, aten.scatter_add.default, aten.index_add.default, aten.index_put.default,
    aten.put.default, aten.masked_scatter.default, aten.index_fill.int_Scalar,
))  # fmt: skip
"""Operators that write into zeros which the code above has just made; into anything else it really writes a copy."""
ZEROS = ("aten::zeros", "aten::zeros_like", "aten::new_zeros")
CHAINED = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.logical_and.default))
"""Operators by which the gradients of `STEPWISE` are made step by step."""
STEPWISE = ("BinaryCrossEntropyWithLogitsBackward0", "MaxBackward1", "MinBackward1")
LINKS = ("aten::isnan", "aten::add.Tensor", "aten::add.Scalar", "aten::sub.Tensor", "aten::mul.Tensor", "aten::sigmoid")
"""What the first operand of such a step was made by, if that was a step too."""


def replaces(func: Any, args: tuple[Any, ...], maker: str) -> bool:
    """Says whether an operator of a backward pass writes its result into its first operand where tensors are plain.

    Args:
        func: the operator, one of `SCATTERING` or `CHAINED`.
        args: its arguments.
        maker: name of the operator that allocated the first operand.
    """
    node = torch._C._current_autograd_node()
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False  # the user's own code does what it says
    if func in SCATTERING:
        return maker in ZEROS
    chained = func in CHAINED and maker in LINKS and node is not None and node.name() in STEPWISE
    return chained and isinstance(args[1], torch.Tensor)
