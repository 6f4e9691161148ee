"""Workloads that cannot be traced, with the reason: models that hide their memory, steps that fail on fake tensors."""

import linecache
import os
import traceback
from pathlib import Path

import torch
from torch import nn

from autofit.core.errors import Untraceable

LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


def check_traceable(model: nn.Module) -> None:
    """Checks that a trace can show the memory that the model needs.

    It cannot for compiled models, layers that a library runs as a whole in its own memory, and sparse gradients.

    Raises:
        Untraceable: the model has one of these; the error names it and its module.
    """
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        raise Untraceable("torch.compile decides which tensors are kept in memory", "the model is compiled")
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            kind = type(module).__name__
            raise Untraceable(
                f"a library runs the {kind} as a whole, and its memory is not visible in a trace",
                f"the module {name!r}",
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise Untraceable("the size of sparse gradients depends on the data", f"the module {name!r}")


def untraceable(error: Exception, doing: str) -> Untraceable:
    """Returns the error that ends a trace in which the user's code or torch raised `error`, in the phase `doing`.

    Its place is the innermost line of the traceback outside torch and autofit, or else the phase.
    """
    operator, line = getattr(error, "func", None), next(iter(str(error).strip().splitlines()), "")
    reason = f"on tensors without data it raises {type(error).__name__}: {line}"
    if operator is not None:
        reason = f"the result of {operator} depends on data"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(LIBRARIES)]
    if not frames:
        return Untraceable(reason, f"in {doing}")
    place = f"{frames[-1].filename}:{frames[-1].lineno}"
    text = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    return Untraceable(reason, f"{place}: {text}" if text else place)
