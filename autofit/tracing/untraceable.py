"""What cannot be traced, and how it is said: a model that hides its memory, a step that fails on fake tensors."""

import linecache
import os
import traceback
from pathlib import Path

import torch
from torch import nn

from autofit.core.errors import Untraceable

LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


def check_traceable(model: nn.Module) -> None:
    """Raises where no trace can show what the model needs.

    It is compiled, or it has layers that a library runs as a whole, in memory of its own, or sparse gradients.

    Raises:
        Untraceable: which of these it is, and in which module.
    """
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        raise Untraceable("torch.compile decides by itself what is kept in memory", "the model is compiled")
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            kind = type(module).__name__
            raise Untraceable(
                f"a library runs an {kind} as a whole and keeps what no trace shows", f"the module {name!r}"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise Untraceable("sparse gradients hold as many rows as the data asks for", f"the module {name!r}")


def untraceable(error: Exception, doing: str) -> Untraceable:
    """Returns what ends a trace in which the user's code or torch raised `error`, while it was `doing` something."""
    return Untraceable(_reason(error), _where(error, doing))


def _reason(error: BaseException) -> str:
    operator = getattr(error, "func", None)
    line = next(iter(str(error).strip().splitlines()), "")
    if operator is not None:
        return f"the result of {operator} depends on data"
    return f"{type(error).__name__}: {line}"


def _where(error: BaseException, doing: str) -> str:
    """Returns the innermost line of a traceback that is neither torch's nor autofit's; else what was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(LIBRARIES)]
    if not frames:
        return f"in {doing}"
    frame = frames[-1]
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}: {text}" if text else f"{frame.filename}:{frame.lineno}"
