"""Finds the repeated blocks of any model, and its outermost modules of a kind, from its module tree alone."""

from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import type_before_parametrizations


def is_compiled(module: nn.Module) -> bool:
    """Returns whether the module itself was compiled, as a wrapper or in place."""
    # By name: importing torch._dynamo takes seconds.
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def has_compiled_part(model: nn.Module) -> bool:
    """Returns whether the model or a module in it was compiled."""
    return any(map(is_compiled, model.modules()))


def outermost(model: nn.Module, fits: Callable[[nn.Module], bool]) -> Iterator[nn.Module]:
    """Yields the outermost modules of a model that fit."""
    if fits(model):
        yield model
        return
    for child in model.children():
        yield from outermost(child, fits)


_SPLIT_GAIN = 1.25
"""Minimum ratio of memory freed by inner blocks to that of outer ones, for inner blocks to be used. It is well above 1
because parameters are a rough measure."""

_SPLIT_SHARE = 0.5
"""Minimum share of a block's work in its inner blocks, for them to replace the block."""


def find_blocks(model: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the repeated blocks of `model` in module order, none inside another; () if there are none.

    A block is one of two or more modules of one class that share a parent, has children and holds
    parameters. Modules without a forward (`ModuleList`, `ModuleDict`) are skipped in favour of their children. Two
    `Sequential` are of one class if their contents are. Blocks of several parents (the stages of a ResNet, an encoder
    and a decoder) are combined. The outermost blocks are used, unless they are stages or stacks: recomputing one block
    at a time frees all activations except those of the largest block, so inner blocks are used if that frees clearly
    more.

    Parameters, without embeddings, are used as a proxy for activations. Not found: blocks that share all their weights
    (one module called repeatedly), blocks written with bare parameters, TorchScript modules, and repeated leaf
    modules (a plain `Sequential` of `Linear` and `ReLU`), which are not worth recomputing.
    """
    blocks = _repeated(model)
    while True:
        finer = tuple(dict.fromkeys(inner for block in blocks for inner in _finer(block)))
        if finer == blocks or _freed(finer) < _SPLIT_GAIN * _freed(blocks):
            return blocks
        blocks = finer


def _repeated(module: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the outermost repeated blocks below `module`, in module order."""
    units = list(dict.fromkeys(_units(module)))
    counts = Counter(_kind(unit) for unit in units)
    found: dict[nn.Module, None] = {}
    for unit in units:
        if counts[_kind(unit)] > 1 and _children(unit) and _work(unit):
            found[unit] = None
        else:
            found.update(dict.fromkeys(_repeated(unit)))
    return tuple(found)


def _finer(block: nn.Module) -> tuple[nn.Module, ...]:
    inner = _repeated(block)
    return inner if sum(map(_work, inner)) >= _SPLIT_SHARE * _work(block) else (block,)


def _freed(blocks: tuple[nn.Module, ...]) -> int:
    """Returns the work freed by checkpointing all blocks: that of all except the largest, which becomes live again."""
    works = [_work(block) for block in blocks]
    return sum(works) - max(works, default=0)


def _units(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the children of `module` that have a forward. A child without a forward is replaced by its children."""
    for child in _children(module):
        if isinstance(child, torch.jit.ScriptModule):
            continue
        if getattr(child.forward, "__func__", None) is nn.Module.forward:
            yield from _units(child)
        else:
            yield child


def _children(module: nn.Module) -> list[nn.Module]:
    """Returns the children of `module` without its parametrizations (weight norm, spectral norm)."""
    return [child for name, child in module.named_children() if name != "parametrizations"]


def _kind(module: nn.Module) -> object:
    if type(module) is nn.Sequential:
        return (nn.Sequential, *map(_kind, module.children()))
    return type_before_parametrizations(module)  # parametrization changes the class of a module


def _work(module: nn.Module) -> int:
    """Returns the number of parameters used in arithmetic, without embeddings."""
    return sum(
        parameter.numel()
        for part in module.modules()
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag)
        for parameter in part.parameters(recurse=False)
        if not is_lazy(parameter)
    )
