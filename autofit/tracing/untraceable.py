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
    """Returns the error that ends a trace in which the user's code or torch raised `error`, in the phase `doing`."""
    return Untraceable(_reason(error), _where(error, doing))


def _reason(error: BaseException) -> str:
    operator = getattr(error, "func", None)
    line = next(iter(str(error).strip().splitlines()), "")
    if operator is not None:
        return f"the result of {operator} depends on data"
    return f"on tensors without data it raises {type(error).__name__}: {line}"


def _where(error: BaseException, doing: str) -> str:
    """Returns the innermost line of a traceback outside torch and autofit, or else the phase that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(LIBRARIES)]
    if not frames:
        return f"in {doing}"
    frame = frames[-1]
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}: {text}" if text else f"{frame.filename}:{frame.lineno}"
