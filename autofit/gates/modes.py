"""Modes of modules in which gradients are compared: without dropout, which would hide a difference.

In training mode, only torch's own dropout is turned off. Evaluation mode turns off any dropout, and also hides
behaviour that is specific to training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autofit.torch_internals import DropoutNd, NormBase, run_backward

Modes = Callable[[nn.Module], AbstractContextManager[None]]
"""Sets the modes of a model's modules for a comparison of gradients, and restores them."""


@contextmanager
def evaluating(model: nn.Module, keep: tuple[type[nn.Module], ...] = (NormBase,)) -> Iterator[None]:
    """Sets every module to evaluation mode, except batch normalisation, whose training behaviour is to be compared.

    Recurrent layers keep their mode too, without dropout: on CUDA they have no backward pass in evaluation mode.
    """
    kept = (*keep, nn.RNNBase)
    modes = [(module, "training", module.training and isinstance(module, kept)) for module in model.modules()]
    dropouts = [(module, "dropout", 0.0) for module in model.modules() if isinstance(module, nn.RNNBase)]
    with attributes_set([*modes, *dropouts]):
        yield


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Turns off the dropout of torch's own layers and functions. Nothing else changes its mode."""
    switched = [(m, name, off) for m in model.modules() for kinds, name, off in _SWITCHES if isinstance(m, kinds)]
    with attributes_set(switched), _WithoutDropout():
        yield


@contextmanager
def attributes_set(wanted: Sequence[tuple[nn.Module, str, Any]]) -> Iterator[None]:
    """Sets attributes of modules, and puts them back."""
    before = [(module, name, getattr(module, name)) for module, name, _ in wanted]
    try:
        for module, name, value in wanted:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


_SWITCHES: tuple[tuple[Any, str, Any], ...] = (
    ((DropoutNd, nn.RReLU), "training", False),
    # Recurrent layers on CUDA have no backward pass in evaluation mode.
    ((nn.RNNBase, nn.MultiheadAttention), "dropout", 0.0),
)
_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
    *(F.alpha_dropout, F.feature_alpha_dropout, F.rrelu),
)
_ATTENTION_DROPOUT = 4  # position of `dropout_p` among the arguments of attention


class _WithoutDropout(TorchFunctionMode):
    """While it is active, torch's functions drop nothing, also those that checkpointing runs again in a backward pass.

    Torch suspends a mode for the function that it handles. The backward pass is therefore started with the mode active.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function. Dropout functions run as in evaluation mode."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.backward:
            func, kwargs["grad_tensors"] = torch.autograd.backward, kwargs.pop("gradient", None)
        if func is torch.autograd.backward and not kwargs.get("inputs"):
            return self._backward(*args, **kwargs)
        if func in _DROPOUTS:
            kwargs["training"] = False
        elif func is F.scaled_dot_product_attention and len(args) > _ATTENTION_DROPOUT:
            args = (*args[:_ATTENTION_DROPOUT], 0.0, *args[_ATTENTION_DROPOUT + 1 :])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)

    def _backward(
        self, tensors: Any, grad_tensors: Any, retain_graph: bool | None = None, create_graph: bool = False, **rest: Any
    ) -> None:
        """Starts the engine itself, because the mode would handle every public function that starts it."""
        roots = _as_tuple(tensors)
        given = [None] * len(roots) if grad_tensors is None else _as_tuple(grad_tensors)
        first = [torch.ones_like(root) if each is None else each for root, each in zip(roots, given, strict=True)]
        keep = create_graph if retain_graph is None else retain_graph
        with self:
            run_backward(roots, first, keep, create_graph)


def _as_tuple(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
