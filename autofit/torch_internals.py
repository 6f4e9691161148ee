"""The private names of torch that several parts of autofit use: one place to look when a version of torch changes them.

`tests/test_torch_internals.py` tries each with the installed torch, and `scripts/test-version` with others. Members of
strategies, devices and the stand-in for CUDA reach into one operator or back end each, and name it where they do.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import _C, distributed, nn
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.distributed import _composable_state
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.dropout import _DropoutNd as DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils.data import _utils as loader_utils
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [  # what is imported from here, beside what is defined here
    "BatchNorm", "ConvNd", "DataDependentOutputException", "DropoutNd", "DynamicOutputShapeException", "FakeTensor",
    "FakeTensorMode", "InstanceNorm", "LoaderIterator", "NormBase", "OpOverload", "TorchDispatchMode", "foreach",
    "is_traceable_wrapper_subclass", "loader_utils", "pytree",
]  # fmt: skip

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


def sequence_number(node: Any) -> int:
    """Returns the sequence number of a node; at least 2**63 for one that accumulates a parameter's gradient."""
    return int(node._sequence_nr())


def top_saved_tensors_hook() -> Any:
    """Returns the innermost hook that packs saved tensors; None if there is none."""
    found = _C._autograd._top_saved_tensors_default_hooks(True)
    return None if found is None else found[0]


def saved_by(node: Any) -> list[Any]:
    """Returns what a node of the graph has saved, without running hooks that would restore it. None is what was freed.

    A hook may have saved something else than a tensor.
    """
    names = _SAVED_BY_KIND.get(type(node))
    if names is None:
        names = _SAVED_BY_KIND[type(node)] = [name for name in dir(node) if name.startswith("_raw_saved_")]
    try:
        saved = [getattr(node, name) for name in names]
    except RuntimeError:  # a backward pass has freed what a function in Python had saved
        return []
    both = [each for value in saved for each in (value if isinstance(value, (tuple, list)) else (value,))]
    return [each.data for each in both]


_SAVED_BY_KIND: dict[type, list[str]] = {}


def is_view(tensor: torch.Tensor) -> bool:
    """Returns whether autograd knows a tensor as a view of another one."""
    return bool(tensor._is_view())


def base_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor of which autograd knows another one as a view; None for a tensor with memory of its own."""
    return tensor._base


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Sets the counter by which autograd notices that a tensor was changed in place."""
    _C._autograd._unsafe_set_version_counter((tensor,), (version,))


def has_kernel(operator: str, key: str) -> bool:
    """Returns whether an operator, by its qualified name, has a kernel for a dispatch key, such as "CUDA"."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(operator, key))


def is_wrapped_by_functorch(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor belongs to a transform of `torch.func`, such as `vmap`."""
    return bool(_C._functorch.is_functorch_wrapped_tensor(tensor))


def is_transforming() -> bool:
    """Returns whether a transform of `torch.func`, such as `grad` or `vmap`, runs in this thread."""
    return _C._functorch.peek_interpreter_stack() is not None


def foreach_types() -> tuple[list[Any], list[Any]]:
    """Returns the lists of tensor types for which optimizers and gradient clipping use foreach implementations."""
    return optimizers._foreach_supported_types, foreach._foreach_supported_types


def storage_id(storage: torch.UntypedStorage) -> int:
    """Returns the address of a storage's record, which all tensors with that storage share, fake ones among them."""
    return int(storage._cdata)


def use_count(storage: torch.UntypedStorage) -> int:
    """Returns the number of references to a storage, that of `storage` itself among them."""
    return int(_C._storage_Use_Count(storage._cdata))


def schema_of(operator: Any) -> Any:
    """Returns the schema of an operator's overload: its name, arguments and returns."""
    return operator._schema


def packet_of(operator: Any) -> Any:
    """Returns the packet of all overloads of an operator, such as `aten.mm` of `aten.mm.default`."""
    return operator._overloadpacket


def without_dispatch(key: str) -> AbstractContextManager[None]:
    """Returns a context in which operators skip the kernels of a dispatch key, such as "AutocastPrivateUse1"."""
    keys: Any = _C.DispatchKey  # its members are not in the stubs
    guard: AbstractContextManager[None] = _C._ExcludeDispatchKeyGuard(_C.DispatchKeySet(getattr(keys, key)))
    return guard


def run_backward(roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], keep: bool, create: bool) -> None:
    """Runs a backward pass from `roots`, past every public function that starts one."""
    torch.autograd.graph._engine_run_backward(
        tuple(roots), tuple(gradients), keep, create, (), allow_unreachable=True, accumulate_grad=True
    )


def handles_child_signal(value: bool | None = None) -> bool:
    """Returns whether torch's handler for the end of a loader's worker is installed; sets that record if given."""
    handling: Any = loader_utils.signal_handling
    was_set = bool(handling._SIGCHLD_handler_set)
    if value is not None:
        handling._SIGCHLD_handler_set = value
    return was_set


def global_step_hooks() -> int:
    """Returns the number of hooks that run before each step of any optimizer."""
    return len(optimizers._global_optimizer_pre_hooks)


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Returns whether hooks run before or after the steps of an optimizer, its own or those of all optimizers."""
    of_this = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    return any((*of_this, optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks))


def start_memory_record() -> None:
    """Starts the legacy profiler's record of memory in this thread, without shapes, stacks, counts and operators."""
    _C._autograd._enable_profiler_legacy(
        ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    )
    _C._autograd._enable_record_function(False)


def stop_memory_record() -> list[list[Any]]:
    """Ends the record and returns its events by thread."""
    try:
        return _C._autograd._disable_profiler_legacy()
    finally:
        _C._autograd._enable_record_function(True)


def fake_store() -> Any:
    """Returns the store of a process group whose other ranks do not exist, and makes the back end "fake" known."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  # loads sharded tensors

    return FakeStore()


def default_store() -> Any:
    """Returns the store through which the ranks of this process's default group met."""
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415  # a torch may be built without

    return _get_default_store()


@contextmanager
def default_group(group: Any) -> Iterator[None]:
    """Makes a process group the one of collective operations that name none, until the context is left."""
    found: Any = distributed.group  # whose setter is not in the stubs
    before, found.WORLD = found.WORLD, group
    try:
        yield
    finally:
        found.WORLD = before


def numbering_of_exchanges() -> Any:
    """Returns the module that numbers exchanges of tensors without data, by Python's generator: its `random`."""
    return importlib.import_module("torch.distributed._meta_registrations")  # a torch may be built without


def issued(group: Any) -> int:
    """Returns the number of collective operations that this rank has begun on a process group."""
    return int(group._get_sequence_number_for_group())


def time_limit(group: Any, device_type: str) -> timedelta:
    """Returns after how long a collective operation of a process group ends with an error."""
    found: timedelta = group._get_backend(torch.device(device_type)).options._timeout
    return found


def known_groups() -> list[Any]:
    """Returns the process groups of this process to which it belongs."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415  # a torch may be built without

    return [each for each in distributed_c10d._world.pg_map if isinstance(each, distributed.ProcessGroup)]


def limit_time(group: Any, limit: timedelta) -> None:
    """Sets after how long a collective operation of a process group ends with an error."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415  # a torch may be built without

    distributed_c10d._set_pg_timeout(limit, group)


def forget_groups(mesh: Any) -> None:
    """Lets go of the process groups of a mesh, which caches of sharded tensors keep. A group that is kept stays open.

    A torch before 2.13 keeps none in its meshes, and nothing is done.
    """
    vars(mesh).get("_pg_registry", {}).clear()


def without_modes() -> AbstractContextManager[Any]:
    """Returns a context in which no dispatch mode is active, such as that of fake tensors."""
    found: AbstractContextManager[Any] = _disable_current_modes()
    return found


def result_propagator() -> Any:
    """Returns the class that runs each new operator of sharded tensors once on their global shapes: its method's owner.

    The method is `RESULT_PROPAGATION`.
    """
    from torch.distributed.tensor._sharding_prop import ShardingPropagator  # noqa: PLC0415  # loads sharded tensors

    return ShardingPropagator


RESULT_PROPAGATION = "_propagate_tensor_meta_non_cached"


def forget_composition(module: nn.Module) -> None:
    """Removes what `fully_shard` keeps of a module outside it."""
    _composable_state._module_state_mapping.pop(module, None)
