"""Watch: records a few real training steps, operator by operator, without changing what they compute."""

import gc
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, Self

import torch
from torch import nn
from torch.autograd import graph
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autofit.doctor.graphs import ACCUMULATES, DatedGraphs, nodes_of
from autofit.doctor.holders import unlisted
from autofit.doctor.seen import (
    Cast,
    Dropped,
    LiveTensors,
    ModuleCall,
    NoTally,
    Pending,
    Ran,
    Retained,
    Saved,
    Seen,
    Switched,
    TensorEnd,
    Zeroed,
    has_storage,
    is_masked,
    only_views,
    replace_with,
    resting,
)
from autofit.doctor.sites import NOWHERE, Site, here
from autofit.doctor.waits import CAST, wait_of
from autofit.memory.trace import Kind, Mark
from autofit.torch_internals import (
    BatchNorm,
    DropoutNd,
    current_node,
    next_sequence_number,
    sequence_number,
    storage_id,
    top_saved_tensors_hook,
)
from autofit.tracing.operation_count import Tally, tensors_in
from autofit.tracing.plain_tensors import sums_in_place
from autofit.tracing.recorder import Recorder, in_backward
from autofit.tracing.tracing import inside_operators
from autofit.workloads.tree import tensors
from autofit.workloads.workload import state_tensors

aten = torch.ops.aten
ZEROING = "zero_"
"""End of the names of the operators that set tensors to zero: one tensor, or a list of them."""
NEW_TENSORS = aten.lift_fresh.default
"""The operator that brings in tensors which the step makes from numbers."""
CLEANING: tuple[tuple[Any, str, str], ...] = (
    (gc, "collect", "gc.collect()"),
    (torch.get_device_module("cuda"), "empty_cache", "torch.cuda.empty_cache()"),
)
"""Functions that clean up, with the object that has them and their name in texts."""


class Watch(Recorder, Seen):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records the steps of a training on one device while it is active.

    The mode sees each operator, also those of backward passes. Hooks see what autograd saves, when a gradient is
    complete and when an optimizer steps. Call `boundary` at the end of each step. The first steps of a training should
    run before: hooks on saved tensors switch off torch's check for weights that were changed in place.

    Args:
        device: device to record.
        models: models that are trained. Others are found when they are called.
        saves: whether to observe what autograd saves. `torch.func` refuses to run under such hooks.

    Attributes:
        sites: where each allocation was made, by handle.
        forms: type and shape of the tensor of each allocation, by handle.
        steps: the step in which each allocation was made, by handle.
        born: number of the operator that made each allocation, by handle.
        site: where the operator that runs was called.
        reads: number of events after which each allocation was read no more, by handle.
        read_by: number of the operator that read each allocation last, by handle; the one that made it if none did.
        calls: the calls of modules.
        step: number of the current step, from 1.
        operator: number of operators so far.
        saves: whether what autograd saves is observed.
        followed: ids of the parameters whose gradients are observed.
        on_operator: called before each operator; None for nothing.
    """

    def __init__(self, device: torch.device, models: Sequence[nn.Module] = (), *, saves: bool = True) -> None:
        rules = inside_operators(device, None, torch.get_num_threads())
        Seen.__init__(self)
        Recorder.__init__(self, device.type, lambda func, args, kwargs: func(*args, **kwargs), *rules)
        self.sites: list[Site] = []
        self.forms: list[tuple[torch.dtype, tuple[int, ...]] | None] = []
        self.steps: list[int] = []
        self.born: list[int] = []
        self.reads: list[int] = []
        self.read_by: list[int] = []
        self.calls: list[ModuleCall] = []
        self.step, self.operator = 1, 0
        self.followed: set[int] = set()
        self._parts = weakref.WeakSet[nn.Module]()
        self.on_operator: Callable[[Watch, Any], None] | None = None
        self._called_before: Counter[int] = Counter()
        self._given, self.saves, self._call = models, saves, -1
        self._aside, self._loading, self._of_inputs = False, False, False
        self._creating: Site | None = None
        self._thread = get_ident()
        self._accelerated, self._updating = device.type != "cpu", False
        self.tally, self._since, self._undo = self._new_tally(), 0, ExitStack()
        self._hooks = graph.saved_tensors_hooks(partial(_pack, weakref.ref(self)), partial(_unpack, weakref.ref(self)))
        self.site, self._backward_from, self._passes = NOWHERE, NOWHERE, 0
        self._numbered, self._firsts, self._places = 0, list[int](), list[Site]()
        self._by_gradient = dict[int, Zeroed]()
        self._tensors: LiveTensors
        self._ends: dict[int, TensorEnd] = {}

    @contextmanager
    def watching(self, *, called: bool = False) -> Iterator[Self]:
        """Records what runs inside. Entering the mode itself would not add the hooks.

        `called` says that the caller passes on the hooks of updates, because it opens this context inside one.
        """
        self._thread = get_ident()
        with ExitStack() as undo:
            if not called:
                undo.callback(register_optimizer_step_pre_hook(self.update_begins).remove)
                undo.callback(register_optimizer_step_post_hook(self.update_ends).remove)
            undo.callback(register_module_forward_pre_hook(self._called).remove)
            undo.callback(register_module_forward_hook(self._returned, always_call=True).remove)
            undo.enter_context(self.modules.following())
            undo.enter_context(sums_in_place(self))
            if self.saves:
                undo.enter_context(self._hooks)
                disable = graph.disable_saved_tensors_hooks
                undo.callback(setattr, graph, "disable_saved_tensors_hooks", disable)
                graph.disable_saved_tensors_hooks = partial(self._without_hooks, disable)
            replace_with(undo, torch.autograd, "backward", self._watched)
            replace_with(undo, torch.autograd, "grad", self._differentiated)
            self.resting = undo.enter_context(resting())
            replace_with(undo, CheckpointFunction, "apply", self._checkpointed)
            replace_with(undo, _BaseDataLoaderIter, "__next__", self._loaded)
            for owner, name, shown in CLEANING:
                replace_with(undo, owner, name, partial(self._counted, shown))
            undo.callback(self.stop)
            self._undo, self._tensors = undo, LiveTensors()
            for model in self._given:
                self.adopt(model)
            self.begins.append(next_sequence_number())
            self._mark("forward")
            with self:
                yield self

    def adopt(self, model: nn.Module, name: str = "") -> None:
        """Records the parameters and buffers of a model and observes its gradients, if it is new."""
        if model in self._parts:
            return
        self._parts.update(model.modules())
        name = name or ("" if not self.models else type(model).__name__)
        shown = {each or type(held).__name__ for each, held in self.models.items()}
        while name in shown:
            name += "'"
        self.models[name] = model
        self.modules.add(model, name)
        for parameter in model.parameters():
            self._follow(parameter)
        for named, buffer in model.named_buffers():
            self.record(buffer, Kind.BUFFER, initial=True)
            if (handle := self.handle_of(buffer)) is not None:
                self.buffers.setdefault(handle, named)
        for path, each in unlisted(model, name or type(model).__name__):
            if isinstance(each, nn.Module):
                self.unlisted.update(map(id, each.parameters()))
                self.adopt(each, path)
            else:
                self.unlisted.add(id(each))
                self.alone[path] = each
                self._follow(each)

    def last_lines(self) -> dict[int, Site]:
        """Returns where the last of the live tensors of each allocation was made, such as a view that is kept."""
        return {end.handle: end.site for end in self._ends.values()}

    def _follow(self, parameter: torch.Tensor) -> None:
        self.record(parameter, Kind.PARAMETER, initial=True)
        if parameter.requires_grad and parameter.is_leaf:
            hook = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
            self._undo.callback(hook.remove)
            self.followed.add(id(parameter))

    def boundary(self) -> None:
        """Ends a step; the next one begins."""
        with self.aside():
            for optimizer in self.optimizers.values():
                self.label(state_tensors(optimizer), Kind.OPTIMIZER_STATE)
            gradients = (parameter.grad for _, parameter in self.parameters())
            self.label((gradient for gradient in gradients if gradient is not None), Kind.GRADIENT)
            self.work.append(self.tally.work())
            self.levels.append(sum(self.sizes[handle] for handle in self.live()))
            self.nodes.append(self._old_nodes())
        self.ends.append(self.operator)
        self.step, self.tally = self.step + 1, self._new_tally()
        self._call, self._passes = -1, 0
        self._firsts.clear()
        self._places.clear()
        self.modules.forget()
        self._called_before.clear()
        self._since = len(self.sizes)
        self.begins.append(next_sequence_number())
        self._mark("forward")

    def _new_tally(self) -> Tally:
        return Tally() if self._accelerated else NoTally()

    def handle_of(self, tensor: torch.Tensor) -> int | None:
        """Returns the handle of a tensor's allocation; None if it is not recorded."""
        if not has_storage(tensor):
            return None
        known = self._live.get(storage_id(tensor.untyped_storage()))
        return None if known is None else known[0]

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leaves out of the record what runs inside."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Leaves out of the record what was there before and is read inside, such as a data set that is in memory."""
        before, self._loading = self._loading, True
        try:
            yield
        finally:
            self._loading = before

    def _elsewhere(self) -> bool:
        """Returns whether what runs does not belong to the record. Hooks are called in all threads, unlike the mode."""
        return self._aside or (get_ident() != self._thread and not in_backward())  # CUDA has threads for its passes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and records what it reads and allocates."""
        kwargs = kwargs or {}
        if self._aside:
            return func(*args, **kwargs)
        self.site = self._site()
        if self.on_operator is not None:
            self.on_operator(self, func)
        if only_views(func):
            out = func(*args, **kwargs) if self._loading else self.recorded(func, args, kwargs)
            self._note_results(out)
            return out
        if self._accelerated:
            self._note_wait_or_cast(func, args, kwargs)
        self.operator += 1
        read, first = list(self._read(func, args, kwargs)), len(self.sizes)
        out = self.recorded(func, args, kwargs)
        made, results = range(first, len(self.sizes)), self._note_results(out)
        self.ran.append(Ran(self.operator, in_backward(), read, made, results, is_masked(func), len(self.events)))
        for handle in read:
            self.reads[handle], self.read_by[handle] = len(self.events), self.operator
        if isinstance(out, torch.Tensor) and out.dtype is torch.float64 and out.dim():
            self._note_widening(func, read)
        return out

    def _note_results(self, out: Any) -> list[int]:
        """Returns the allocations of an operator's results. Notes when those of a forward pass are let go."""
        known = [(each, handle) for each in tensors_in((out,)) if (handle := self.handle_of(each)) is not None]
        for tensor, handle in [] if in_backward() else known:
            end = TensorEnd(tensor, self._let_go)
            end.handle, end.site = handle, self.site
            self._ends[id(end)] = end
        return [handle for _, handle in known]

    def _let_go(self, end: Any) -> None:
        self.let_go[end.handle] = len(self.events)
        self._ends.pop(id(end), None)

    def _note_wait_or_cast(self, func: Any, args: Any, kwargs: Any) -> None:
        """Notes an operator for which the host waits, or which casts a parameter. The first not in an update."""
        if not self._updating and (why := wait_of(func, args, kwargs, self._device_type)):
            self.waits[why, self.site] += 1
        if func is CAST and (wanted := kwargs.get("dtype")) not in (None, args[0].dtype):
            handle = self.handle_of(args[0])
            if handle is not None and self.kinds[handle] is Kind.PARAMETER:
                self.casts[Cast(self.step, handle, wanted, args[0].requires_grad)] += 1

    def _note_widening(self, func: Any, read: Sequence[int]) -> None:
        """Notes an operator whose float64 result has no float64 operand that the steps have made.

        A backward pass computes in the types of its forward pass, and brings none in.
        """
        forms = ((each, self.forms[each]) for each in read)
        wide = [each for each, form in forms if form is not None and form[0] is torch.float64 and form[1]]
        if in_backward() or not all(each in self.outside or each in self.buffers for each in wide):
            return
        if not wide or not set().union(*self.widened.values()).issuperset(wide):
            self.widened.setdefault((func.name(), self.site), set()).update(wide)

    def _read(self, func: Any, args: Any, kwargs: Any) -> Iterator[int]:
        """Yields the allocations that an operator reads."""
        events, zeroes = len(self.events), func.name().endswith(ZEROING)
        for each in tensors_in((*args, *kwargs.values())):
            if func is not NEW_TENSORS:
                self._record_outside(each)
            handle = self.handle_of(each)
            if handle is None:
                continue
            if zeroes and self.kinds[handle] is Kind.GRADIENT:
                found = Zeroed(handle, self.step, self.site, events)
                self.zeroed.append(found)
                self._by_gradient[handle] = found
                name = self.gradients.get(handle, 0)
                if name in self.pending and self._was_read(self.pending[name]):
                    del self.pending[name]
            else:
                yield handle

    def record(self, tensor: torch.Tensor, kind: Kind = Kind.TEMPORARY, *, initial: bool = False) -> None:
        """Records the storage of a tensor if it has one, and it is on the device and new."""
        if not has_storage(tensor):
            return
        before = len(self.sizes)
        super().record(tensor, kind, initial=initial)
        if len(self.sizes) > before:
            self.forms[-1] = (tensor.dtype, tuple(tensor.shape))

    def label(self, tensors: Iterable[torch.Tensor], kind: Kind) -> None:
        """Sets the kind of the storages of these tensors, as far as they have one."""
        super().label(filter(has_storage, tensors), kind)

    def _record_outside(self, tensor: torch.Tensor) -> None:
        """Records a tensor that the watch did not see being made, from here on."""
        if self._loading:
            return
        before = len(self.sizes)
        if self.handle_of(tensor) is None:
            self.record(tensor, Kind.BATCH)
        new = set(range(before, len(self.sizes)))
        self.outside |= new
        if new and self._tensors.had(storage_id(tensor.untyped_storage())):
            self.ready |= new

    def _add(self, size: int, kind: Kind) -> int:
        self.sites.append(self.site)
        self.forms.append(None)
        self.steps.append(self.step)
        self.born.append(self.operator)
        self.reads.append(len(self.events) + 1)
        self.read_by.append(self.operator)
        return super()._add(size, kind)

    def _site(self) -> Site:
        """Returns where the running operator comes from: in a backward pass, the line that made its node."""
        if in_backward():
            node = current_node()
            number = -1 if node is None else sequence_number(node)
            place = bisect_right(self._firsts, number) - 1
            found = self._places[place] if 0 <= number < ACCUMULATES and place >= 0 else here()
            return found if found.user else self._backward_from
        site, numbered = here(), next_sequence_number()
        if numbered > self._numbered and (not self._places or self._places[-1] != site):
            self._firsts.append(self._numbered)
            self._places.append(site)
        self._numbered = numbered
        return site

    def _called(self, module: nn.Module, args: Any) -> None:
        """Notes a call of a module before it begins. One that no other calls, or that no model has, is a model."""
        if self._elsewhere():
            return
        if in_backward():
            self.recomputed = True
            return
        if self._call < 0 or (self.modules.index_of(module) is None and any(True for _ in module.parameters())):
            self.adopt(module)
        if self._call < 0:
            self.label((each for each in tensors(args) if self._is_given(each)), Kind.BATCH)
        index = self.modules.index_of(module)
        if index is not None and isinstance(module, (DropoutNd, BatchNorm)):
            self._note_scale(index, module)
            self.switches.add(Switched(index, module.training, torch.is_grad_enabled(), self._call, self.step))
        number = self._called_before[id(module)]
        self._called_before[id(module)] += 1
        self.calls.append(ModuleCall(here(), self._call, -1 if index is None else index, number))
        self._call = len(self.calls) - 1

    def _note_scale(self, index: int, module: nn.Module) -> None:
        scale = getattr(module, "weight", None)
        if isinstance(scale, torch.Tensor) and not torch.is_grad_enabled() and index not in self.scales:
            with self.aside():
                self.scales[index] = scale.detach().clone()

    def _returned(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._elsewhere() and not in_backward() and self._call >= 0:
            self._call = self.calls[self._call].outer

    def _is_given(self, tensor: torch.Tensor) -> bool:
        """Returns whether an argument of a model belongs to the batch: no module and no graph has made it."""
        handle = self.handle_of(tensor)
        return tensor.grad_fn is None and handle is not None and self.origins[handle] < 0

    def _pack(self, tensor: torch.Tensor) -> Any:
        if self._aside or isinstance(tensor, nn.Parameter) or (handle := self.handle_of(tensor)) is None:
            return tensor
        found = Saved(handle, self._creating or here(), self.step, self._call, created=self._creating is not None)
        self.saved.append(found)
        with self.aside():  # a node that saves its own output would keep itself alive through the hook
            return tensor.detach(), found

    @contextmanager
    def _without_hooks(self, disable: Callable[[str], AbstractContextManager[None]], message: str) -> Iterator[None]:
        """Does without the hooks while torch disables them, as inside `torch.func`, which refuses to run under them."""
        if top_saved_tensors_hook() is not self._hooks.pack_hook:
            with disable(message):
                yield
            return
        self._hooks.__exit__()
        try:
            with disable(message):
                yield
        finally:
            self._hooks.__enter__()

    def alive(self) -> Iterator[torch.Tensor]:
        """Yields the tensors that are alive."""
        yield from self._tensors.alive()

    def _old_nodes(self) -> int:
        """Returns the number of nodes of earlier steps that are alive."""
        dated = DatedGraphs(self.begins)
        nodes = nodes_of({tensor.grad_fn: None for tensor in self.alive()})
        return sum(1 for node in nodes if 0 < dated.step_of(node) < self.step)

    def _mark(self, phase: str) -> None:
        self.marks.append(Mark(name=f"step {self.step} {phase}", event=len(self.events)))

    def _watched(self, backward: Callable[..., None]) -> Callable[..., None]:
        def watched(*args: Any, **kwargs: Any) -> None:
            if self._elsewhere() or in_backward():
                return backward(*args, **kwargs)
            given = dict(zip(("tensors", "grad_tensors", "retain_graph", "create_graph"), args, strict=False)) | kwargs
            self._backward_from, begun = here(), self.operator + 1
            self._passes += 1
            for handle in self.live():
                if handle >= self._since and self.kinds[handle] is Kind.TEMPORARY:
                    self.kinds[handle] = Kind.ACTIVATION
            self._mark("backward")
            creates = bool(given.get("create_graph"))
            try:
                with self._passing(self._backward_from, creates=creates):
                    return backward(*args, **kwargs)
            finally:
                if given.get("retain_graph") and not creates:
                    self.retained.append(Retained(self._backward_from, self.step, begun, self.operator + 1))
                self._since = len(self.sizes)
                self._mark("forward")

        return watched

    def _differentiated(self, grad: Callable[..., Any]) -> Callable[..., Any]:
        def differentiated(*args: Any, **kwargs: Any) -> Any:
            if self._elsewhere() or in_backward():
                return grad(*args, **kwargs)
            names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
            given = dict(zip(names, args, strict=False)) | kwargs
            trained = any(isinstance(each, nn.Parameter) for each in tensors(given.get("inputs")))
            creates = bool(given.get("create_graph"))
            with self._passing(here(), creates=creates, of_inputs=not trained and not creates):
                return grad(*args, **kwargs)

        return differentiated

    @contextmanager
    def _passing(self, site: Site, *, creates: bool, of_inputs: bool = False) -> Iterator[None]:
        """Runs a backward pass, which may create a graph, or make no gradients but those of inputs."""
        begun = self.operator + 1
        self._creating, self._of_inputs = site if creates else None, of_inputs
        try:
            yield
        finally:
            self._creating, self._of_inputs = None, False
            if creates:
                self.created.append(Retained(site, self.step, begun, self.operator + 1))

    def _checkpointed(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def checkpointed(*args: Any) -> Any:
            first, out = len(self.calls), apply(*args)
            reached = any(each.requires_grad for each in tensors_in(args))
            if torch.is_grad_enabled() and not (reached or self._elsewhere() or in_backward()):
                self.cut_off.setdefault(here(), set()).update(each.module for each in self.calls[first:])
            return out

        return checkpointed

    def _loaded(self, following: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def loaded(batches: Any) -> Any:
            if self._elsewhere():
                return following(batches)
            with self.loading():
                return following(batches)

        return loaded

    def _counted(self, shown: str, clean: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if not self._elsewhere() and (site := here()).user:
                self.cleanings[shown, site] += 1
            return clean(*args, **kwargs)

        return counted

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Notes a gradient. One that nothing read before is dropped if it was zeroed or replaced meanwhile."""
        gradient, name = parameter.grad, id(parameter)
        if gradient is None or self._aside:
            return
        self.last_gradient[name] = self.step
        self.label([gradient], Kind.GRADIENT)
        handle = self.handle_of(gradient)
        zeroed = None
        if handle is not None:
            self.gradients[handle] = name
            if (zeroed := self._by_gradient.pop(handle, None)) is not None:
                zeroed.last = len(self.events)
        before = self.pending.get(name)
        passes: Sequence[Dropped] = () if before is None else before.passes
        if before is not None and (before.gradient() is not gradient or zeroed is not None):
            if zeroed is not None or not self._was_read(before):
                self.dropped += passes
            passes = ()
        size, site = gradient.numel() * gradient.element_size(), self._backward_from
        made = Dropped(name, handle, size, site, self._passes, self.operator, self.step)
        self.pending[name] = Pending(weakref.ref(gradient), (*passes, made))

    def _was_read(self, pending: Pending) -> bool:
        """Returns whether the user's code has read a gradient, such as to move weights by it or to clip it."""
        last = pending.passes[-1]
        return last.handle is not None and self.read_by[last.handle] > last.made_at

    def update_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Notes that an optimizer is about to step."""
        is_new = id(optimizer) not in self.optimizers
        self.optimizers[id(optimizer)] = optimizer
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.pending.pop(id(parameter), None)
                if parameter.grad is not None:  # also one that was set by hand
                    self.last_gradient[id(parameter)] = self.step
        if self._elsewhere():
            return
        for tensor in state_tensors(optimizer) if is_new else ():  # that of frozen parameters is never read
            self.record(tensor, Kind.OPTIMIZER_STATE, initial=True)
        self._updating = True
        self._mark("optimizer")

    def update_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Notes that an optimizer has stepped."""
        if self._elsewhere():
            return
        self._updating = False
        self.label(state_tensors(optimizer), Kind.OPTIMIZER_STATE)
        self._since = len(self.sizes)
        self._mark("forward")


def _pack(watch: "weakref.ref[Watch]", tensor: torch.Tensor) -> Any:
    """Returns what autograd saves. A graph keeps this function, and so it does not keep the watch and its models."""
    known = watch()
    return tensor if known is None else known._pack(tensor)


def _unpack(watch: "weakref.ref[Watch]", packed: Any) -> torch.Tensor:
    """Returns a saved tensor."""
    if isinstance(packed, torch.Tensor):
        return packed
    tensor, found = packed
    if (known := watch()) is not None and not known._aside:
        found.used_at, found.event = known.operator, len(known.events)
        found.trains = found.trains or not known._of_inputs
    return tensor  # type: ignore[no-any-return]  # what `Watch._pack` returned
