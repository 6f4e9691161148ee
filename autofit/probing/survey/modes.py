"""Modes of modules: what is said of those that the user has set, and those in which gradients are compared.

Both of these are without dropout, which would hide what is asked about.

In training mode only torch's own dropout is off. Evaluation mode turns off dropout of whatever make, and hides what a
model does in training alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from autofit.core.units import format_names

NAMED = 3
"""So many modules are named."""


def mode_notes(names: Sequence[str]) -> Iterator[str]:
    """Yields what a person should know where modules of a model in training mode were in evaluation mode."""
    if names:
        yield (
            f"found {format_names(names, NAMED)} in evaluation mode in a model that is in training mode: measured in "
            "training mode, since model.train() in a training loop sets every module to it. To keep modules in "
            "evaluation mode, override train() of your model"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts every module in evaluation mode except batch normalisation, whose training mode is what is asked about."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module, training in modes.items():
            module.training = training and isinstance(module, _NormBase)
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Turns off the dropout of torch's own layers and functions; all else stays in the mode that it has."""
    own: list[tuple[nn.Module, str, Any]] = []
    try:
        for module in model.modules():
            for kinds, name, off in _SWITCHES:
                if isinstance(module, kinds):
                    own.append((module, name, getattr(module, name)))
                    setattr(module, name, off)
        with _Undropped():
            yield
    finally:
        for module, name, value in own:
            setattr(module, name, value)


_SWITCHES: tuple[tuple[Any, str, Any], ...] = (
    ((_DropoutNd, nn.RReLU), "training", False),
    # Recurrent layers on CUDA have no backward pass in evaluation mode.
    ((nn.RNNBase, nn.MultiheadAttention), "dropout", 0.0),
)
_DROPOUTS = (
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d),
    *(F.alpha_dropout, F.feature_alpha_dropout, F.rrelu),
)
_ATTENTION_DROPOUT = 4  # its place among the arguments of attention


class _Undropped(TorchFunctionMode):
    """While it is active, torch's functions drop nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function, one of dropout as in evaluation mode."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            kwargs["training"] = False
        elif func is F.scaled_dot_product_attention and len(args) > _ATTENTION_DROPOUT:
            args = (*args[:_ATTENTION_DROPOUT], 0.0, *args[_ATTENTION_DROPOUT + 1 :])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
