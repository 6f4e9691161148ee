"""Modes of modules: the note on modules that the user set to evaluation mode, and the modes for comparing gradients.

Gradients are compared without dropout, which would hide the difference. In training mode, only torch's own dropout is
turned off. Evaluation mode turns off any dropout, and also hides behaviour that is specific to training.
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
"""Maximum number of modules that a note names."""


def mode_notes(names: Sequence[str]) -> Iterator[str]:
    """Yields a note if modules of a model in training mode were in evaluation mode."""
    if names:
        yield (
            f"found {format_names(names, NAMED)} in evaluation mode in a model that is in training mode: measured in "
            "training mode, because model.train() in a training loop sets every module to training mode. To keep "
            "modules in evaluation mode, override train() of your model"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Sets every module to evaluation mode, except batch normalisation, whose training behaviour is to be compared."""
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
    """Turns off the dropout of torch's own layers and functions. Nothing else changes its mode."""
    before: list[tuple[nn.Module, str, Any]] = []
    try:
        for module in model.modules():
            for kinds, name, off in _SWITCHES:
                if isinstance(module, kinds):
                    before.append((module, name, getattr(module, name)))
                    setattr(module, name, off)
        with _WithoutDropout():
            yield
    finally:
        for module, name, value in before:
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
_ATTENTION_DROPOUT = 4  # position of `dropout_p` among the arguments of attention


class _WithoutDropout(TorchFunctionMode):
    """While it is active, torch's functions drop nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function. Dropout functions run as in evaluation mode."""
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            kwargs["training"] = False
        elif func is F.scaled_dot_product_attention and len(args) > _ATTENTION_DROPOUT:
            args = (*args[:_ATTENTION_DROPOUT], 0.0, *args[_ATTENTION_DROPOUT + 1 :])
        elif func is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
