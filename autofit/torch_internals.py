"""The private names of torch that several parts of autofit use: one place to look when a version of torch changes them.

`tests/test_torch_internals.py` tries each with the installed torch, and `scripts/test-version` with others. Members of
strategies, devices and the stand-in for CUDA reach into one operator or back end each, and name it where they do.
"""

from typing import Any

import torch
from torch import _C
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.dropout import _DropoutNd as DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
from torch.utils import _foreach_utils as foreach
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils.data import _utils as loader_utils
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [
    "BatchNorm",
    "ConvNd",
    "DataDependentOutputException",
    "DropoutNd",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "InstanceNorm",
    "LoaderIterator",
    "NormBase",
    "TorchDispatchMode",
    "backward_id",
    "current_node",
    "foreach",
    "has_kernel",
    "is_traceable_wrapper_subclass",
    "is_wrapped_by_functorch",
    "loader_utils",
    "next_sequence_number",
    "pytree",
    "set_version",
    "without_tensor_subclasses",
]

without_tensor_subclasses = _C.DisableTorchFunctionSubclass
"""Context manager: functions of torch see a tensor's data, not its subclass."""


def current_node() -> Any:
    """Returns the node of autograd's graph whose backward function runs in this thread; None outside."""
    return _C._current_autograd_node()


def backward_id() -> int:
    """Returns the number of the backward pass that runs in this thread; -1 outside."""
    return int(_C._current_graph_task_id())


def next_sequence_number() -> int:
    """Returns the sequence number of the next node of autograd's graph in this thread."""
    return int(_C._autograd._get_sequence_nr())


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Sets the counter by which autograd notices that a tensor was changed in place."""
    _C._autograd._unsafe_set_version_counter((tensor,), (version,))


def has_kernel(operator: str, key: str) -> bool:
    """Returns whether an operator, by its qualified name, has a kernel for a dispatch key, such as "CUDA"."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(operator, key))


def is_wrapped_by_functorch(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor belongs to a transform of `torch.func`, such as `vmap`."""
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor))
