"""Compiled regions: what of a model is worth compiling beside its repeated blocks.

These are modules outside the blocks that run several operators (an embedding with its positions and norm, a norm
written by hand, a head of several layers), and the function that computes the loss. An uncompiled loss of logits in
16 bits makes copies of them in float32, forward and backward; compiled, they are never written to memory.

A single layer of torch's own (a linear head, an embedding) is left out: it is one operator, so nothing can be fused.
So is the loss of logits in float32, of which no copies are made. On a host the gain is memory, not time: the loss of
256 x 32,000 logits in bf16 took 44 ms compiled and 31 ms uncompiled on one CPU thread (torch 2.13).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from autofit.strategies.blocks import outermost
from autofit.strategies.deferred_logits import DeferringForward
from autofit.strategies.undo import Undo
from autofit.torch_internals import pytree
from autofit.workloads.step import Draft

MOST_PARTS = 16
"""Maximum number of modules in a region. What is larger is not small beside the blocks, and would take long to
compile."""
MOST_REGIONS = 3
"""Maximum number of regions. Each is compiled for itself: with the five of ConvNeXt-T, compiling took 44 s on an H100,
and 14 s without."""
_LOSS = "_loss_function"
"""Attribute in which a model of transformers 4.46 or later keeps a loss function that was set; a property reads it."""

HALF = (torch.bfloat16, torch.float16)

Call = Callable[..., Any]


def find_regions(model: nn.Module, blocks: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    """Returns the outermost modules outside the blocks that run several operators, in module order.

    Modules that another strategy has changed stay as they are. None is returned where there are more than
    `MOST_REGIONS`.
    """
    found = tuple(dict.fromkeys(_regions(model, set(blocks))))
    return found if len(found) <= MOST_REGIONS else ()


def _regions(module: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if child in blocks or isinstance(child, torch.jit.ScriptModule):
            continue
        if _is_region(child) and blocks.isdisjoint(child.modules()):
            yield child
        else:
            yield from _regions(child, blocks)


def _is_region(module: nn.Module) -> bool:
    parts = list(module.modules())
    if any(isinstance(part, nn.RNNBase | torch.jit.ScriptModule) or "forward" in vars(part) for part in parts):
        return False
    calls = getattr(module.forward, "__func__", None) is not nn.Module.forward  # a ModuleList does not
    several = len(parts) > 1 or type(module).__module__.partition(".")[0] != "torch"
    return calls and several and len(parts) <= MOST_PARTS and next(module.parameters(), None) is not None


class CompiledCriterion:
    """A loss function that runs compiled if it is given a tensor in 16 bits. A copied or pickled one is the original.

    `compiled` calls its first argument, the original, with the others.
    """

    def __init__(self, original: Call, compiled: Call) -> None:
        self.original, self.compiled = original, compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the loss."""
        given = (each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor))
        if any(each.dtype in HALF for each in given):
            return self.compiled(self.original, *args, **kwargs)
        return self.original(*args, **kwargs)

    def __reduce__(self) -> tuple[Call, tuple[Call]]:
        return _itself, (self.original,)


def compile_loss(draft: Draft, compiled: Callable[[Call], Call], undo: Undo) -> None:
    """Has the loss of a step run compiled: the user's function of outputs and targets, or that of a transformers model.

    A loss that a step function or a model computes in lines of its own stays as it is, and so does one that takes the
    logits in chunks (`DeferredLogits`). `compiled` returns the compiled function that calls a loss function.
    """
    if any(isinstance(vars(part).get("forward"), DeferringForward) for part in draft.model.modules()):
        return
    compiled_loss = draft.loss.with_criterion(lambda criterion: CompiledCriterion(criterion, compiled(criterion)))
    undo.set(draft, "loss", compiled_loss)
    for owner in _owners(draft.model):
        criterion = owner.loss_function
        undo.replace(vars(owner), _LOSS, CompiledCriterion(criterion, compiled(criterion)))


def _owners(model: nn.Module) -> Iterator[Any]:
    """Yields the outermost models of transformers whose forward calls the loss function that a property gives."""
    for owner in outermost(model, lambda each: isinstance(getattr(type(each), "loss_function", None), property)):
        forwards = (vars(kind).get("forward", _itself) for kind in type(owner).__mro__)
        codes = (getattr(inspect.unwrap(forward), "__code__", _itself.__code__) for forward in forwards)
        if any("loss_function" in code.co_names for code in codes):
            yield owner


def _itself(criterion: Call) -> Call:
    return criterion
