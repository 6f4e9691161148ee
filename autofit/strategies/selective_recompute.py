"""Selective recomputation: keeps the results of expensive operators of a checkpointed block and recomputes the others.

Kept are products with a matrix, convolutions and fused attention. Their results take few bytes for their work. Norms,
activations, elementwise operators and products of few terms are recomputed; so are batched products, since one of
queries and keys would keep the whole attention matrix.

This is what `torch.utils.checkpoint.create_selective_checkpoint_contexts` does, except in three cases in which torch
raises an error or computes a wrong gradient. All three are then recomputed:

* A kept result that is changed in place (a convolution before `ReLU(inplace=True)`): torch raises.
* Operators that only one of the runs has, because autocast had a cast of a shared weight in its cache: torch raises.
* Attention with dropout: a kept result draws no random numbers in the second run, so later dropout would differ.
"""

from collections import defaultdict
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

FEWEST_TERMS = 64
"""Minimum number of terms of each entry of a product that is kept. Depthwise convolutions have 9, a stem 27."""

aten = torch.ops.aten
_TERMS = {
    aten.mm.default: lambda args: args[0].shape[1],
    aten.addmm.default: lambda args: args[1].shape[1],
    aten.convolution.default: lambda args: args[1][0].numel(),
    aten._scaled_mm.default: lambda args: args[0].shape[1],
}
"""Number of terms of each entry of a product, by operator."""
_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable", "_flash_attention_forward", "_efficient_attention_forward",
)  # fmt: skip


def is_kept(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether the results of an operator are kept."""
    terms = _TERMS.get(func)
    if terms is not None:
        return bool(terms(args) >= FEWEST_TERMS)
    return _is_attention(func) and not _draws(func, args, kwargs)


def _is_attention(func: Any) -> bool:
    return isinstance(func, torch._ops.OpOverload) and func._schema.name.removeprefix("aten::") in _ATTENTION


def _draws(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Returns whether attention has dropout."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(value)
    return False


class Kept:
    """The results that the first run of a block keeps for the second.

    Attributes:
        by_operator: results in the order of the calls, each with the versions of its tensors; None once it was used.
    """

    def __init__(self) -> None:
        self.by_operator: defaultdict[Any, list[tuple[Any, list[int]] | None]] = defaultdict(list)


class Keeping(TorchDispatchMode):
    """The mode of the first run."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.kept = kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator and keeps its results if they are worth it."""
        out = func(*args, **(kwargs or {}))
        if is_kept(func, args, kwargs or {}):
            result = pytree.tree_map_only(torch.Tensor, _detached, out)
            self.kept.by_operator[func].append((result, _versions(result)))
        return out


class Replaying(TorchDispatchMode):
    """The mode of the second run. It can be entered again, for a graph that is kept for another backward pass."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.kept = kept
        self.calls: defaultdict[Any, int] = defaultdict(int)

    def __enter__(self) -> "Replaying":
        self.calls.clear()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has no types here
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns the kept results of an operator, or runs it if there are none or if they have changed since."""
        if is_kept(func, args, kwargs or {}):
            entries, call = self.kept.by_operator[func], self.calls[func]
            self.calls[func] += 1
            entry = entries[call] if call < len(entries) else None
            if entry is not None:
                entries[call] = None  # frees the results as soon as the backward pass has used them
                result, versions = entry
                if _versions(result) == versions:
                    return result
        return func(*args, **(kwargs or {}))


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    # As torch's own selective checkpointing does: below autograd, a view shares the version of its base only with this
    # dispatch key.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def _versions(result: Any) -> list[int]:
    return [leaf._version for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
