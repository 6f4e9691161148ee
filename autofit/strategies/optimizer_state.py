"""The optimizer's state on several ranks: divided along with the parameters, and brought together at the end.

So a training that continues keeps its momentum under every layout, and what was trained can be saved as in one process.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.optim import Optimizer

from autofit.core.errors import UsageError
from autofit.strategies.tensor_parallel import tensors_of_ranks
from autofit.strategies.torch_optimizers import grouped_parameters
from autofit.strategies.undo import Undo
from autofit.torch_internals import FakeTensor, is_traceable_wrapper_subclass, pytree
from autofit.workloads.step import Ranks

State = dict[str, Any]
"""What an optimizer keeps for one parameter, by name."""
Shards = Mapping[int, tuple[torch.Tensor, Any]]
"""Each whole parameter with its sharded one, by the identity of the whole one."""


def undividable(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer has state of other shapes than its parameters, which is not divided with them."""
    return any(not _follows(value, owner) for owner, state in optimizer.state.items() for value in state.values())


def check_alike(optimizer: Optimizer, ranks: Ranks) -> None:
    """Checks that all ranks continue with the same optimizer state and settings, such as the learning rate.

    Raises:
        UsageError: one has others than rank 0, on all ranks.
    """
    settings = [[(name, _brief(each)) for name, each in g.items() if name != "params"] for g in optimizer.param_groups]
    state = [[(n, _brief(e)) for n, e in optimizer.state.get(p, {}).items()] for _, p in grouped_parameters(optimizer)]
    said = ranks.exchanged((settings, state))
    for rank, each in enumerate(said):
        if each != said[0]:
            what = "settings, such as the learning rate," if each[0] != said[0][0] else "state"
            raise UsageError(
                f"found that the {what} of the optimizer on rank {rank} differs from that of rank 0; expected the same "
                "on all ranks, of which each continues with its own. Load the checkpoint on all of them, the "
                "scheduler's too."
            )


def _brief(value: Any) -> str:
    """Returns a number or text as it is, of a tensor the shape and the sum, and of anything else the type."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.sum().item()!r}"
    return repr(value) if isinstance(value, int | float | str | tuple | None) else type(value).__name__


def divide_state(optimizer: Optimizer, shards: Shards, ranks: Ranks, undo: Undo) -> None:
    """Divides the state of whole parameters, which is not `undividable`, as these are sharded.

    At the end, ranks that train bring the state together. On guarded and fake ranks it is put back as it was.
    """
    before = _taken(optimizer, ranks, undo)
    for owner in list(before):
        state = before.pop(owner) if ranks.train else before[owner]
        whole, shard = shards.get(id(owner), (owner, owner))
        optimizer.state[shard] = {name: _part(value, whole, shard) for name, value in state.items()}
    if ranks.guarded:
        for owner, state in before.items():
            if id(owner) in shards:
                _release(state, owner, undo)
    elif ranks.train:
        undo.callback(_bring_together, optimizer, shards, ranks)


def part_state(optimizer: Optimizer, owned: Optimizer, ranks: Ranks, undo: Undo) -> None:
    """Leaves each rank the state of the parameters that it updates, in the optimizer `owned`.

    At the end, ranks that train bring the state together. On guarded and fake ranks it is put back as it was.
    """
    before, mine = _taken(optimizer, ranks, undo), {id(parameter) for _, parameter in grouped_parameters(owned)}
    for owner, state in before.items():
        if id(owner) in mine:
            owned.state[owner] = state
        elif ranks.guarded:
            _release(state, owner, undo)
    if ranks.train:
        undo.callback(_exchange_parts, optimizer, owned, ranks)


def _taken(optimizer: Optimizer, ranks: Ranks, undo: Undo) -> dict[Any, State]:
    """Empties an optimizer's state and returns it. On guarded and fake ranks, registers that it is put back."""
    before = dict(optimizer.state)
    without_data = any(isinstance(each, FakeTensor) for each in pytree.tree_leaves(list(before.values())))
    if not ranks.train:
        if not without_data:  # what a trace keeps would count
            undo.callback(optimizer.state.update, before)
        undo.callback(optimizer.state.clear)
    optimizer.state.clear()
    return before


def _follows(value: Any, owner: torch.Tensor) -> bool:
    """Returns whether an entry of a state is divided as its parameter is, or is the same for each part."""
    if isinstance(value, torch.Tensor):
        return value.shape == owner.shape or value.numel() == 1
    return not any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(value))


def _part(value: Any, whole: torch.Tensor, shard: Any) -> Any:
    """Returns this rank's part of an entry of the state of a parameter."""
    if not isinstance(value, torch.Tensor):
        return value
    if shard is whole or value.dim() == 0 or value.shape != whole.shape:
        return value.clone()
    return tensors_of_ranks().distribute_tensor(value, shard.device_mesh, shard.placements, src_data_rank=None)


def _release(state: State, owner: torch.Tensor, undo: Undo) -> None:
    """Releases the memory of whole state, which a guard gives its content again."""
    for value in state.values():
        if isinstance(value, torch.Tensor) and value.shape == owner.shape and value.dim():
            undo.release(value)


def wholes_of(shards: Shards) -> dict[int, torch.Tensor]:
    """Returns each whole parameter by the identity of its sharded one."""
    return {id(shard): whole for whole, shard in shards.values()}


@torch.no_grad()
def _bring_together(optimizer: Optimizer, shards: Shards, ranks: Ranks) -> None:
    """Gives each whole parameter the state of all of its parts."""
    wholes = wholes_of(shards)
    trained: dict[Any, State] = dict(optimizer.state)
    optimizer.state.clear()
    count = sum(each.nbytes for state in trained.values() for each in state.values() if _is_divided(each))
    fits = _fits(count + sum(whole.nbytes for whole, _ in shards.values()), ranks)
    for _, shard in grouped_parameters(optimizer):
        if (state := trained.pop(shard, None)) is not None:
            whole = wholes.get(id(shard), shard)
            optimizer.state[whole] = {name: _placed(_whole(state.pop(name)), fits) for name in list(state)}


def _is_divided(value: Any) -> bool:
    return is_traceable_wrapper_subclass(value)


def _whole(value: Any) -> Any:
    return value.full_tensor() if _is_divided(value) else value


def _placed(value: Any, fits: bool) -> Any:
    return value if fits or not isinstance(value, torch.Tensor) else value.cpu()


@torch.no_grad()
def _exchange_parts(optimizer: Optimizer, owned: Optimizer, ranks: Ranks) -> None:
    """Gives all ranks the state that each has of the parameters that it updates."""
    parameters = [parameter for _, parameter in grouped_parameters(optimizer)]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    states = {numbers[id(owner)]: state for owner, state in owned.state.items()}
    said = ranks.exchanged({number: _outline(state) for number, state in states.items()})
    sent = [each for outlines in said for outline in outlines.values() for each, _ in outline.values()]
    fits = _fits(sum(each.nbytes for each in sent if isinstance(each, torch.Tensor)), ranks)
    for source, outlines in enumerate(said):
        for number, outline in outlines.items():
            owner, state = parameters[number], states.get(number, {}) if source == ranks.number else {}
            kept = {name: _sent(state.get(name), each, owner, source, ranks) for name, each in outline.items()}
            optimizer.state[owner] = {name: _placed(each, fits) for name, each in kept.items()}
    owned.state.clear()


def _outline(state: State) -> dict[str, tuple[Any, bool]]:
    """Returns the entries of a state, of large ones the shape and dtype only, and whether each is on the host."""
    found = {}
    for name, value in state.items():
        is_tensor = isinstance(value, torch.Tensor)
        sent = value.to("cpu" if value.numel() == 1 else "meta") if is_tensor else value
        found[name] = (sent, not is_tensor or value.is_cpu)
    return found


def _sent(mine: Any, outline: tuple[Any, bool], owner: torch.Tensor, source: int, ranks: Ranks) -> Any:
    """Returns an entry of the state of a parameter on all ranks; `mine` is that of the rank that has it."""
    sent, on_host = outline
    if not isinstance(sent, torch.Tensor) or not sent.is_meta:  # what is no tensor counts as on the host
        return sent if on_host else sent.to(owner.device)
    found = torch.empty_like(sent, device=owner.device) if mine is None else mine
    ranks.broadcast(found, source)
    return found


def _fits(count: int, ranks: Ranks) -> bool:
    """Returns whether some bytes more fit on the devices of all ranks. Otherwise it warns that the host has them."""
    device = ranks.mesh.device_type
    found = torch.zeros(1, dtype=torch.int32, device=device)
    try:
        torch.empty(count, dtype=torch.uint8, device=device)
    except RuntimeError:  # out of memory; of the host, torch has no class of its own
        found += 1
    distributed.all_reduce(found, group=ranks.group)
    if found.item():
        warnings.warn(
            "the whole state of the optimizer does not fit on each device, and comes back in main memory. Load "
            "optimizer.state_dict() with load_state_dict, which moves it, where there is room.",
            stacklevel=2,
        )
    return not found.item()
