"""Recorder: a dispatch mode that records the allocations and releases of a training step's operators, in order.

It tracks storages, not tensors: a view allocates nothing, and a storage is released with its last tensor. It runs above
`FakeTensorMode`, where nothing is computed, or on real tensors.

ModuleStack: finds the module whose forward or backward pass is running.
"""

import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from autofit.core.errors import Untraceable
from autofit.memory.trace import Kind
from autofit.torch_internals import (
    FakeTensor,
    TorchDispatchMode,
    backward_id,
    current_node,
    has_kernel,
    is_view,
    next_sequence_number,
    sequence_number,
    storage_id,
)
from autofit.tracing.cuda.allocator_steps import AllocatorSteps
from autofit.tracing.cuda.results import laid_out, results
from autofit.tracing.host_temporaries import HostTemporaries
from autofit.tracing.operation_count import Tally, tensors_in
from autofit.workloads.tree import pieces


class ModuleStack:
    """Finds the module whose forward or backward pass is running.

    In the backward pass, the module is found by sequence numbers. The nodes of the autograd graph are numbered in the
    order of their creation, so the nodes of a module's forward pass have numbers in known intervals.

    Attributes:
        names: qualified names of the modules, by index.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._indices: dict[int, int] = {}
        self._stack: list[int] = []
        self._thread = get_ident()
        self._firsts: list[int] = []
        self._owners: list[int] = []

    def add(self, model: nn.Module, prefix: str = "") -> None:
        """Follows the modules of `model` too, whose names get a prefix."""
        for name, module in model.named_modules():
            if id(module) not in self._indices:
                self._indices[id(module)] = len(self.names)
                self.names.append(".".join(part for part in (prefix, name) if part))

    def rename(self, model: nn.Module, prefix: str) -> None:
        """Gives the names of the modules of `model` another prefix."""
        for name, module in model.named_modules():
            if (index := self.index_of(module)) is not None:
                self.names[index] = ".".join(part for part in (prefix, name) if part)

    @contextmanager
    def following(self, *models: nn.Module) -> Iterator[list[str]]:
        """Follows the modules of `models`, and those that are added, while the context is open. Yields their names."""
        self._thread = get_ident()
        for model in models:
            self.add(model)
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield self.names
        finally:
            for hook in hooks:
                hook.remove()

    def current(self) -> int:
        """Returns the index of the innermost module whose pass is running; -1 for none."""
        if self._stack:
            return self._stack[-1]
        if not in_backward():
            return -1
        node = current_node()
        number = -1 if node is None else sequence_number(node)
        position = bisect_right(self._firsts, number) - 1
        # Nodes that accumulate a parameter's gradient have the largest possible number. They belong to no module.
        accumulates = number >= 2**63
        return -1 if position < 0 or accumulates else self._owners[position]

    def index_of(self, module: nn.Module) -> int | None:
        """Returns the index of a module; None if it is not followed."""
        return self._indices.get(id(module))

    def forget(self) -> None:
        """Forgets the sequence numbers of a finished step."""
        self._stack.clear()
        self._firsts.clear()
        self._owners.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        index = self._indices.get(id(module))
        if index is not None and self._is_here():
            self._stack.append(index)
            self._begin_interval()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._indices.get(id(module)) is not None and self._is_here():
            self._stack.pop()
            self._begin_interval()

    def _is_here(self) -> bool:
        """Returns whether a call belongs to what is recorded. Other threads may call the same modules."""
        return get_ident() == self._thread or in_backward()  # an accelerator has threads for its passes

    def _begin_interval(self) -> None:
        if not in_backward():
            self._firsts.append(next_sequence_number())
            self._owners.append(self._stack[-1] if self._stack else -1)


def in_backward() -> bool:
    """Returns whether this thread is running a backward pass of the autograd engine."""
    return backward_id() != -1


Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Temporaries = Callable[[Any, tuple[Any, ...], Any], AllocatorSteps]

aten = torch.ops.aten
PRODUCTS = frozenset(
    packet.default
    for packet in (
        aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.addbmm, aten.mv, aten.addmv, aten.dot, aten._scaled_mm,
        aten._trilinear, aten.affine_grid_generator, aten._grouped_mm,
    )
)  # fmt: skip
"""Operators that use a cuBLAS handle, and with it a workspace that stays allocated."""
COMPOSITE = "CompositeImplicitAutograd"
DEVICE = torch.ops.prim.device.default

# Much of the autograd engine's code checks `areAnyTensorSubclassLike` and, if true, works out of place. It is always
# true under a dispatch mode, so fake tensors need a copy that plain tensors do not: these write into their first
# operand. Sources, the same in torch 2.11 and 2.13: torch/csrc/autograd/FunctionsManual.cpp
# (`value_selecting_reduction_backward`, `index_backward`, `masked_select_backward`, ...),
# aten/src/ATen/native/TensorAdvancedIndexing.cpp (`gather_backward`, `take_backward`) and Loss.cpp
# (`binary_cross_entropy_with_logits_backward`).
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


class _StorageEnd(weakref.ref[Any]):
    """A weak reference to a storage that knows under which key the storage is recorded."""

    __slots__ = ("key",)
    key: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records allocations and releases on one device type while it is active.

    Args:
        device_type: type of the device to record.
        run: runs an operator, and answers those whose result depends on data. Also an attribute.
        temporaries: returns the temporary memory of an operator on a CUDA device.
        host_temporaries: returns the temporary bytes of an operator on the host.
        workspaces: bytes of the workspace that the first product of each thread allocates and keeps, and of the further
            one that the first product with a bias does.

    Attributes:
        sizes: bytes of each allocation. The index of an allocation is its handle.
        kinds: kind of each allocation, as far as known.
        origins: index of the module in whose pass each allocation was made, or -1.
        events: `handle` for an allocation, `~handle` for its release.
        initial: handles of allocations that existed before the recorder. They are not in `events`.
        in_place: whether a sum would now be made in place if its operands were plain tensors.
        operators: name of the operator that made each allocation.
        modules: finds the module whose pass is running.
        original_storages: storages of the real model, of which the trace has a copy.
        tally: counts the work of the operators.
        deadline: value of `perf_counter` after which no operator is run.
        added: allocations of in-place sums and of sums of two gradients, with the handle of the sum's first operand.
        replaced: allocations that plain tensors would not make, with the handle that the result is written into.
        wrappers: tensor subclasses whose operators run others on the tensors that they wrap. Only those are recorded.
        stream: returns the number of the device's stream that is in use.
        streams: number of the stream for which each allocation was made.
        paused: whether operators run for the shapes of their results alone, so that nothing is recorded.
    """

    def __init__(
        self,
        device_type: str,
        run: Run,
        temporaries: Temporaries | None = None,
        workspaces: tuple[int, int] = (0, 0),
        host_temporaries: HostTemporaries | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.sizes: list[int] = []
        self.kinds: list[Kind] = []
        self.origins: list[int] = []
        self.events: list[int] = []
        self.initial: list[int] = []
        self.added: dict[int, int] = {}
        self.replaced: dict[int, int] = {}
        self.in_place = False
        self.operators: list[str] = []
        self.modules = ModuleStack()
        self._device_type, self.run = device_type, run
        self._temporaries, self._workspaces = temporaries, workspaces
        self._host_temporaries = host_temporaries
        self._with_workspace: set[tuple[bool, bool]] = set()
        self._live: dict[int, tuple[int, _StorageEnd]] = {}
        self._operator = ""
        self.original_storages: set[int] = set()
        self.deadline = math.inf
        self.tally = Tally()
        self.wrappers: tuple[type, ...] = ()
        self.paused = False
        self.stream: Callable[[], int] = int  # 0
        self.streams: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and records what it allocates."""
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].device  # a shortcut, because this is the most frequent call
        if self.wrappers and any(issubclass(kind, self.wrappers) for kind in types):
            return NotImplemented
        if self.paused:
            return func(*args, **(kwargs or {}))
        return self.recorded(func, args, kwargs or {})

    def recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator, records what it allocates, and returns its result."""
        self._operator = func.name()
        if perf_counter() > self.deadline:
            raise Untraceable("the trace took too long", f"in {self._operator}")
        # In inference mode, composite operators arrive whole; otherwise autograd has already decomposed them. Operators
        # of another namespace (prim) are not those of the dispatcher.
        is_aten = torch.is_inference_mode_enabled() and func.namespace == "aten"
        if is_aten and has_kernel(self._operator, COMPOSITE):
            with self:
                return func.decompose(*args, **kwargs)
        if func is not aten.lift_fresh.default:  # the operator that brings in tensors that the step makes from numbers
            for argument in args:
                if isinstance(argument, torch.Tensor) and not isinstance(argument, FakeTensor):
                    self._record_outside(argument)
        out, steps = self._with_temporaries(func, args, kwargs, self.run(func, args, kwargs))
        self._record_call(func, args, out, steps)
        self.tally.add(func, args, kwargs, out)
        return out

    def _with_temporaries(self, func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, AllocatorSteps]:
        """Returns the result with the device's layout, and the allocator steps of the operator's temporary memory."""
        if self._temporaries is not None and any(one.device.type == self._device_type for one in tensors_in((out,))):
            out = laid_out(func, args, out)
            return out, self._temporaries(func, args, out)
        if self._host_temporaries is not None:
            size = self._host_temporaries(func, args, kwargs, out)
            return out, () if size is None else (None, size, ~0)
        return out, ()

    def record(self, tensor: torch.Tensor, kind: Kind = Kind.TEMPORARY, *, initial: bool = False) -> None:
        """Records the storage of a tensor if it is on the device and new. A storage that has grown counts as new.

        Raises:
            Untraceable: the tensor is sparse, so its size depends on data.
        """
        if tensor.device.type != self._device_type:
            return
        if tensor.layout is not torch.strided:
            raise Untraceable(
                "sparse tensors, such as gradients with `sparse=True`, have no known size", self._operator
            )
        storage = tensor.untyped_storage()
        key, size = storage_id(storage), storage.nbytes()
        known = self._live.get(key)
        if known is not None and self.sizes[known[0]] == size:
            return
        handle = self._add(size, kind)
        (self.initial if initial else self.events).append(handle)
        if known is not None:
            self.events.append(~known[0])
        watch = _StorageEnd(storage, self._release)
        watch.key = key
        self._live[key] = (handle, watch)

    def label(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        """Sets the kind of the storages of these tensors."""
        for tensor in chain.from_iterable(map(pieces, tensors)):
            if tensor.layout is torch.strided and (known := self._live.get(storage_id(tensor.untyped_storage()))):
                self.kinds[known[0]] = kind

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Records that a known storage was resized in place, as for gathered weights. This is not an operator."""
        key, size = storage_id(storage), storage.nbytes()
        known = self._live.get(key)
        if known is not None and self.sizes[known[0]] != size:
            handle = self._add(size, Kind.PARAMETER)
            self.events += [~known[0], handle]
            self._live[key] = (handle, known[1])

    def begin(self) -> None:
        """Takes what is allocated now as allocated from the beginning, and forgets what happened before."""
        alive = set(self.live())
        self.initial = [handle for handle in (*self.initial, *self.events) if handle in alive]
        for handle in self.initial:
            if self.kinds[handle] is Kind.TEMPORARY:
                self.kinds[handle] = Kind.BUFFER
        self.events.clear()
        self.added.clear()
        self.replaced.clear()

    def live(self) -> Iterator[int]:
        """Yields the handles of the live allocations."""
        return (handle for handle, _ in self._live.values())

    def repeat(self, begin: int) -> bool:
        """Repeats the events from `begin` on. If they leave anything allocated, does nothing and returns False."""
        events = self.events[begin:]
        taken = [event for event in events if event >= 0]
        if set(taken) != {~event for event in events if event < 0}:
            return False
        numbers = {handle: number for number, handle in enumerate(taken, len(self.sizes))}
        self.sizes += [self.sizes[handle] for handle in taken]
        self.kinds += [self.kinds[handle] for handle in taken]
        self.origins += [self.origins[handle] for handle in taken]
        self.streams += [self.streams[handle] for handle in taken]
        self.operators += [self.operators[handle] for handle in taken]
        for known in (self.added, self.replaced):
            known |= {numbers[each]: numbers.get(first, first) for each, first in known.items() if each in numbers}
        self.events += [numbers[event] if event >= 0 else ~numbers[~event] for event in events]
        return True

    def stop(self) -> None:
        """Forgets the live allocations, so that their release is no longer recorded."""
        self._live.clear()

    def _add(self, size: int, kind: Kind) -> int:
        self.sizes.append(size)
        self.kinds.append(kind)
        self.origins.append(self.modules.current())
        self.streams.append(self.stream())
        self.operators.append(self._operator)
        return len(self.sizes) - 1

    def _release(self, watch: Any) -> None:
        known = self._live.get(watch.key)
        if known is not None and known[1] is watch:
            del self._live[watch.key]
            self.events.append(~known[0])

    def _record_call(self, func: Any, args: Any, out: Any, steps: AllocatorSteps) -> None:
        """Records the allocations of an operator, including its results, and its releases."""
        first, before = self._first(func, args), len(self.sizes)
        leaves = self._results(func, args, out)
        steps, taken = steps if None in steps else (None, *steps), list[int]()
        left = steps.count(None)
        for step in steps:
            if step is None:
                left -= 1
                now, leaves = (leaves[:1], leaves[1:]) if left else (leaves, ())
                self._record_all(now)
                if not left:
                    self._take_workspaces(func, args)
                continue
            if step >= 0:
                taken.append(self._add(step, Kind.TEMPORARY))
            self.events.append(taken[-1] if step >= 0 else ~taken[~step])
        if first is not None and len(self.sizes) > before and self.sizes[before] == self.sizes[first]:
            if func in CHAINED | SCATTERING and _replaces(func, args, self.operators[first]):
                self.replaced[before] = first
            elif func is aten.add.Tensor and len(self.sizes) == before + 1:
                self.added[before] = first

    def _results(self, func: Any, args: Any, out: Any) -> Sequence[Any]:
        if isinstance(out, torch.Tensor):
            return (out,)
        if not isinstance(out, (tuple, list)):
            return ()
        return out if self._temporaries is None else results(func, args, out)

    def _record_all(self, values: Sequence[Any]) -> None:
        for tensor in tensors_in(values):
            self.record(tensor)

    def _record_outside(self, tensor: torch.Tensor) -> None:
        """Records a real tensor that the user's code holds, such as class weights, as allocated from the beginning.

        Raises:
            Untraceable: the tensor belongs to the original model, but the trace uses a copy.
        """
        if tensor.layout is torch.strided and storage_id(tensor.untyped_storage()) in self.original_storages:
            raise Untraceable(
                "the step uses tensors of the original model instead of the model that is passed to it", self._operator
            )
        if tensor.device.type == self._device_type and storage_id(tensor.untyped_storage()) not in self._live:
            self.record(tensor, Kind.BUFFER, initial=True)

    def _take_workspaces(self, func: Any, args: Any) -> None:
        # Each thread keeps one handle and one workspace of each kind: the main thread, and the autograd engine's.
        if func not in PRODUCTS or args[0].device.type != self._device_type:
            return
        # cuBLASLt adds a bias to more than one column only: `useLtInterface` in aten/src/ATen/native/cuda/Blas.cpp.
        with_bias = func is aten.addmm.default and args[0].dim() == 1 and min(args[2].shape) > 1
        for biased, size in zip((False, True), self._workspaces, strict=True):
            key = (in_backward(), biased)
            if size and key not in self._with_workspace and with_bias >= biased:
                self._with_workspace.add(key)
                self.events.append(self._add(size, Kind.WORKSPACE))

    def _first(self, func: Any, args: Any) -> int | None:
        """Returns the handle of the first operand if torch may write the result into it for plain tensors."""
        if func not in CHAINED | SCATTERING or not isinstance(args[0], torch.Tensor):
            return None
        # A recomputed forward pass inside the backward pass has gradients enabled. A view shares its memory.
        backward = in_backward() and not torch.is_grad_enabled() and not is_view(args[0])
        if not backward and not (self.in_place and func is aten.add.Tensor):
            return None
        if args[0].layout is not torch.strided:
            return None
        known = self._live.get(storage_id(args[0].untyped_storage()))
        return None if known is None else known[0]


def _replaces(func: Any, args: tuple[Any, ...], maker: str) -> bool:
    """Returns whether an operator of a backward pass would write into its first operand, which `maker` has made."""
    node = current_node()
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return False  # a custom autograd function runs exactly as written
    if func in SCATTERING:
        return maker in ZEROS
    chained = func in CHAINED and maker in LINKS and node is not None and node.name() in STEPWISE
    return chained and isinstance(args[1], torch.Tensor)
