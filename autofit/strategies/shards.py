"""Shards: parameters of a model divided among ranks, applied and removed in one process.

`fully_shard` (FSDP2) replaces the parameter objects of a model, the classes of its modules and some of their
attributes, and keeps a record of each module outside it; `distribute_module` replaces parameters and adds hooks. All of
this is put back, so that a model can be tried under several layouts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from autofit.strategies.blocks import find_blocks
from autofit.strategies.optimizer_state import Shards, divide_state, wholes_of
from autofit.strategies.torch_optimizers import grouped_parameters
from autofit.strategies.undo import Undo
from autofit.torch_internals import (
    FakeTensor,
    TorchDispatchMode,
    forget_composition,
    is_traceable_wrapper_subclass,
    issued,
    pytree,
    schema_of,
)
from autofit.workloads.step import Draft, Ranks

if TYPE_CHECKING:  # a torch may be built without
    from torch.distributed.device_mesh import DeviceMesh

TABLES = tuple(
    name
    for name, value in vars(nn.Module()).items()
    if isinstance(value, dict) and name not in ("_buffers", "_modules")
)
"""The attributes of a module that hold its parameters and its hooks, by name."""

torch_distributed: Any = distributed
"""The same module, of which torch does not declare all names."""
Divide = Callable[[nn.Module, Undo], None]
"""Replaces parameters of a model by sharded ones. What it registers is undone before the parameters are put back."""


def sharding() -> Any:
    """Returns torch's function `fully_shard`. Its import takes half a second."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    return fully_shard


@contextmanager
def sharded(model: nn.Module, optimizer: Optimizer | None, ranks: Ranks, divide: Divide) -> Iterator[None]:
    """Shards parameters, gradients and optimizer state of a model over `ranks` until the context is left.

    The memory of parameters that are sharded is released meanwhile. At the end they get the trained values, which all
    ranks gather together. On fake ranks nothing can be gathered: they stay, and get the part of this rank. On guarded
    ranks they come back without content. Parameters that `divide` leaves alone are those of the user throughout.
    So does the optimizer's state; on fake and guarded ranks it is put back as it was.

    Args:
        model: the model, which is changed in place.
        optimizer: its groups hold the sharded parameters meanwhile.
        ranks: the ranks.
        divide: replaces the parameters. Where it makes several of a tied one, all modules get the first.
    """
    released = ranks.guarded or not ranks.is_fake or is_without_data(model)
    ranks.make_alike(model)
    with Undo() as undo:
        kept = [_Unsharded.of(module) for module in model.modules()]
        for each in kept:
            undo.callback(each.restore)
        divide(model, undo)
        shards = _replaced(kept)
        if not ranks.guarded:
            undo.callback(_bring_back, shards, alone=ranks.is_fake)
        if released:
            for whole, _ in shards.values():
                undo.release(whole)
        if optimizer is not None:
            if any(id(parameter) not in shards for _, parameter in grouped_parameters(optimizer)):
                _update_apart(optimizer, undo)
            undo.callback(_make_whole, optimizer, shards)
            for group in optimizer.param_groups:
                undo.replace(group, "params", [shards.get(id(each), (each, each))[1] for each in group["params"]])
            divide_state(optimizer, shards, ranks, undo)
        yield


def _replaced(kept: "Sequence[_Unsharded]") -> Shards:
    """Returns which parameters of modules were replaced. All modules of a tied one get the first made of it."""
    shards = dict[int, tuple[torch.Tensor, Any]]()
    for each in kept:
        each.note_added()
        for name, whole in each.tables["_parameters"].items():
            if whole is not None and (shard := getattr(each.module, name)) is not whole:
                _, first = shards.setdefault(id(whole), (whole, shard))
                if first is not shard:
                    setattr(each.module, name, first)
    return shards


def in_blocks(mesh: "DeviceMesh", *, reshard: bool, formats: tuple[Any, Any] = (None, None)) -> Divide:
    """Returns what shards every parameter of a model, and gathers those of one block at a time.

    Args:
        mesh: that of the ranks, or their grid: then each row has a whole model.
        reshard: whether gathered parameters are released after the forward pass, except those outside blocks. The
            backward pass gathers them again.
        formats: how blocks and the rest are gathered, as `in_bf16` returns it; None: in the format of the parameters.
    """

    def divide(model: nn.Module, undo: Undo) -> None:
        for block in blocks_to_shard(model):
            _shard(block, mesh, reshard, formats[0])
        _shard(model, mesh, None if reshard else False, formats[1])

    return divide


def _update_apart(optimizer: Optimizer, undo: Undo) -> None:
    """Has each update find sharded and plain parameters in groups of their own: not every kernel takes both at once.

    Between updates the groups are as before: a scheduler counts them. What an update writes to its group is kept.
    """
    whole, parts = list[dict[str, Any]](), list[dict[str, Any]]()

    def split(*_: Any) -> None:
        if whole:  # the update of a subclass calls that of its base, which torch hooks too
            return
        whole[:] = optimizer.param_groups
        parts[:] = [
            {**group, "params": [each for each in group["params"] if is_traceable_wrapper_subclass(each) is sharded]}
            for group in whole
            for sharded in (True, False)
        ]
        optimizer.param_groups[:] = parts

    def join(*_: Any) -> None:
        for number, group in enumerate(whole):
            group.update({**parts[2 * number], "params": group["params"]})
        if whole:
            optimizer.param_groups[:] = whole
            whole.clear()

    undo.callback(join)  # after an update that failed
    undo.callback(optimizer.register_step_pre_hook(split).remove)
    undo.callback(optimizer.register_step_post_hook(join).remove)


@contextmanager
def kept_apart(model: Any, *, in_rows: bool) -> Iterator[None]:
    """Leaves the gradients of a micro batch on this rank, for the next one to add to, instead of dividing them.

    They are whole meanwhile. With `in_rows` the ranks of a row divide them all the same, and only what rows exchange
    waits: between machines the links are slowest, and parts take no memory beyond that of the gradients.
    """
    exchange = model.set_requires_all_reduce if in_rows else model.set_requires_gradient_sync
    exchange(False)
    try:
        yield
    finally:
        exchange(True)


def takes_unused() -> bool:
    """Returns whether ranks may leave out different parameters of a sharded model: from torch 2.13 on."""
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415

    return hasattr(FSDPModule, "set_reduce_scatter_unused_params")


@contextmanager
def any_used(draft: Draft, ranks: Ranks, *, look: bool) -> Iterator[None]:
    """Lets each rank leave out other parameters of a sharded model in a pass than the rest: their gradients are zeros.

    Otherwise ranks would exchange gradients of different sizes. With `look`, a parameter that no rank has used in a
    step has no gradient when it is updated, as in one process: zeros would move it by momentum and weight decay.
    """
    model: Any = draft.model
    with Undo() as undo:
        if takes_unused():
            model.set_reduce_scatter_unused_params(True)
            if look and draft.optimizer is not None:
                uses = _Uses(draft, ranks, undo)
                for name, module in model.named_modules():
                    if hasattr(module, "set_reduce_scatter_unused_params"):
                        undo.callback(module.register_forward_pre_hook(partial(uses.watch, name)).remove)
                undo.callback(draft.optimizer.register_step_pre_hook(uses.leave_out).remove)
        yield


@dataclass(slots=True)
class _Uses:
    """The parameters of a sharded model that have got a gradient since the last update that was not skipped."""

    draft: Draft
    ranks: Ranks
    undo: Undo
    names: set[str] = field(default_factory=set)
    _watched: set[str] = field(default_factory=set)

    def watch(self, prefix: str, module: nn.Module, _: Any) -> None:
        """Watches the whole parameters of a module, which are gathered now. Later passes only give them content."""
        if prefix in self._watched:
            return
        self._watched.add(prefix)
        for name, whole in module.named_parameters(prefix):
            if whole.requires_grad and not is_traceable_wrapper_subclass(whole):
                hook: Any = partial(noted, self.names, name)
                handle = whole.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self.undo.callback(handle.remove)

    def leave_out(self, *_: Any) -> None:
        """Removes the gradients that are zeros because no rank has used the parameter."""
        named = self.draft.model.named_parameters()
        shards = {name: parameter for name, parameter in named if parameter.requires_grad}
        somewhere = [name in self.names for name in shards]
        self.names.clear()
        found = torch.tensor(somewhere, dtype=torch.int32, device=self.draft.device)
        if not isinstance(found, FakeTensor):
            distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.ranks.group)
            somewhere = found.tolist()
        for shard, is_used in zip(shards.values(), somewhere, strict=True):
            if not is_used:
                shard.grad = None


def noted(used: set[str], name: str, parameter: torch.Tensor) -> None:
    """Notes the name of a parameter that gets a gradient."""
    used.add(name)


@dataclass(slots=True)
class Blocks:
    """The `Exchange` of a sharded model: each pass gathers the weights of blocks, and averages and divides gradients.

    A rank that completes a pass gathers its true weights, so that the others compute with true weights too.
    """

    model: Any
    _calls: "list[_Collective]" = field(default_factory=list)
    _before: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """Returns the exchange of a sharded model; None if its torch cannot begin a pass anew after a failed one."""
        known = hasattr(model, "reset_iter_state") and hasattr(distributed, "all_gather_single")
        return cls(model) if known else None

    def learn(self, run: Callable[[], object]) -> None:
        """Learns from one pass which blocks are gathered, and the sizes of what is averaged, in their order."""
        gathers = list[Any]()
        for module in self.model.modules():
            if hasattr(module, "set_custom_all_gather"):
                module.set_custom_all_gather(_Gather(module, gathers))
        with _Collectives(gathers) as seen:
            run()
        self._calls = seen.found

    def begin(self) -> None:
        """Does nothing: blocks exchange everything in their passes."""

    def attempt(self) -> None:
        """Counts from now what each process group exchanges."""
        self._before = {call.group: issued(call.group) for call in self._calls}

    def complete(self, passes: int) -> None:
        """Divides the weights again, and gathers and averages what is left."""
        discard_pass(self.model)
        sent = {group: issued(group) - before for group, before in self._before.items()}
        for call in self._calls * passes:
            sent[call.group] -= 1
            if sent[call.group] < 0:
                call.again()

    def reset(self) -> None:
        """Does nothing: a rank that completes a pass can begin another one, and so can the others."""


def discard_pass(model: Any, wholes: Mapping[int, torch.Tensor] = MappingProxyType({})) -> None:
    """Divides the weights of a sharded model again after a failed pass, and lets go of all its gradients.

    `wholes` are its whole parameters, which have gradients of micro batches before, see `kept_apart`.
    """
    for parameter in (*model.parameters(), *wholes.values()):  # those of a block that is gathered are whole
        parameter.grad = None
    model.reset_iter_state()


def noted_wholes(model: nn.Module, undo: Undo) -> Mapping[int, torch.Tensor]:
    """Returns a mapping that gets the whole parameters of a sharded model in its first pass; later ones reuse them."""
    found, seen = dict[int, torch.Tensor](), set[int]()

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
    def note(module: nn.Module, _: Any) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            found.update({id(each): each for each in module.parameters() if not is_traceable_wrapper_subclass(each)})

    for module in model.modules():
        if hasattr(module, "unshard"):
            undo.callback(module.register_forward_pre_hook(note).remove)
    return found


@dataclass(frozen=True, slots=True)
class _Collective:
    """A collective operation of a pass.

    Attributes:
        run: the operator.
        arguments: its arguments, with functions that make zeros in the place of tensors.
        group: its process group.
        block: the module whose weights it gathers, or None.
    """

    run: Any
    arguments: tuple[Any, ...]
    group: Any
    block: Any = None

    def again(self) -> None:
        """Does the same with the weights of the block, or with zeros. Waits for its end."""
        if self.block is not None:
            self.block.unshard()
            self.block.reshard()
            return
        zeros = pytree.tree_map(lambda each: each() if isinstance(each, partial) else each, self.arguments)
        torch_distributed.Work.unbox(self.run(*zeros)[-1]).wait()


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Notes the collective operations that run inside. `gathers` gets the block of each one that gathers weights."""

    def __init__(self, gathers: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._gathers, self.found = gathers, list[_Collective]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Runs an operator, and notes it if it is collective."""
        if func.namespace == "c10d":
            names = [argument.name for argument in schema_of(func).arguments]
            group = torch_distributed.ProcessGroup.unbox(args[names.index("process_group")])
            self.found.append(
                _Collective(func, pytree.tree_map_only(torch.Tensor, _zeros, args), group, *self._gathers)
            )
            self._gathers.clear()
        return func(*args, **(kwargs or {}))


def _zeros(tensor: torch.Tensor) -> "partial[torch.Tensor]":
    return partial(torch.zeros, tensor.shape, dtype=tensor.dtype, device=tensor.device)


class _Gather:
    """Gathers the weights of a block as `fully_shard` does by default, and notes the block."""

    def __init__(self, block: Any, found: list[Any]) -> None:
        self._block, self._found = block, found

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory for the whole weights."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        """Gathers."""
        self._found.append(self._block)
        return torch_distributed.all_gather_single(output_tensor, input_tensor, group, async_op)


def in_bf16(*, autocast: bool) -> tuple[Any, Any]:
    """Returns how blocks and the rest of a model are gathered in bfloat16. Gradients are averaged in float32.

    What the model gets and returns is what the step knows. Under autocast, which casts by operator, only the inputs of
    blocks are cast. Without, everything computes in the format of the weights: inputs are cast to it, outputs back.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

    inside = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    changes: dict[str, Any] = {"cast_forward_inputs": False} if autocast else {"output_dtype": torch.float32}
    return inside, replace(inside, **changes)


def _shard(module: nn.Module, mesh: "DeviceMesh", reshard: bool | None, policy: Any) -> None:
    sharding()(module, mesh=mesh, reshard_after_forward=reshard, **({} if policy is None else {"mp_policy": policy}))


def blocks_to_shard(model: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the blocks that are gathered one at a time. Tied weights belong to the root, and so do their blocks."""
    uses = _uses(model)
    found = []
    for block in find_blocks(model):
        if all(uses[key] == count for key, count in _uses(block).items()):
            found.append(block)
    return tuple(found)


def _uses(model: nn.Module) -> Counter[int]:
    """Returns how many modules have each parameter, by its identity."""
    return Counter(id(parameter) for module in model.modules() for parameter in module.parameters(recurse=False))


def is_without_data(model: nn.Module) -> bool:
    """Returns whether a model is a copy without data, as in a trace."""
    return any(isinstance(parameter.data, FakeTensor) for parameter in model.parameters())


def _make_whole(optimizer: Optimizer, shards: Shards) -> None:
    """Gives groups that were added meanwhile whole parameters instead of sharded ones."""
    wholes = wholes_of(shards)
    for group in optimizer.param_groups:
        group["params"][:] = [wholes.get(id(each), each) for each in group["params"]]


@torch.no_grad()
def _bring_back(shards: Shards, *, alone: bool) -> None:
    """Copies trained values into the whole parameters; for a rank `alone`, those of its own part."""
    for whole, shard in shards.values():
        if isinstance(whole.data, FakeTensor):
            continue
        whole.requires_grad_(shard.requires_grad)  # the user may have frozen a layer meanwhile
        if not alone:
            whole.copy_(shard.full_tensor())
            continue
        mesh, part = shard.device_mesh, whole
        for size, number, placement in zip(mesh.shape, mesh.get_coordinate(), shard.placements, strict=True):
            if placement.is_shard():
                parts = part.chunk(size, placement.dim)
                part = parts[number] if number < len(parts) else part[:0]
        if part.numel():
            part.copy_(shard.to_local())


@dataclass(slots=True)
class _Unsharded:
    """What `fully_shard` changes of a module."""

    module: nn.Module
    kind: type[nn.Module]
    names: frozenset[str]
    tables: dict[str, dict[str, Any]]
    added: frozenset[str] | None = field(default=None)

    @classmethod
    def of(cls, module: nn.Module) -> "_Unsharded":
        found = vars(module)
        return cls(module, type(module), frozenset(found), {name: dict(found[name]) for name in TABLES})

    def note_added(self) -> None:
        """Notes which attributes the module has got since. The user's code may add others later."""
        self.added = frozenset(vars(self.module).keys() - self.names)

    def restore(self) -> None:
        """Puts everything back."""
        self.module.__class__ = self.kind
        found = vars(self.module)
        for name in (found.keys() - self.names) if self.added is None else self.added:
            found.pop(name, None)
        for name, entries in self.tables.items():
            found[name].clear()
            found[name].update(entries)
        forget_composition(self.module)
