"""Compilation: each plan is compiled as if it were the only one, as in training."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch

MOST_COMPILED = 256
"""Maximum number of recompilations that torch.compile keeps: one per plan, and no search tries more plans than this."""


def start_cold() -> None:
    """Discards the code that torch.compile made in this process, so that the next steps compile as training would.

    Otherwise the first plan would pay for all, and later plans would run kernels that also serve its batch size. Other
    functions that the user has compiled are compiled again at their next call.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")  # looked up, because the import and a reset may each take seconds
    if dynamo is not None and dynamo.counters.get("frames"):
        torch.compiler.reset()


def shapes_of_a_training(vary: bool) -> AbstractContextManager[object]:
    """Returns a context in which torch.compile treats each plan's batch size as the only one, as training does.

    Otherwise the second size would get kernels for any size, and from the ninth size on a model may silently run
    uncompiled, so that plans that run later would look slower. If shapes vary within training too, nothing is changed.
    """
    config = sys.modules.get("torch._dynamo.config")  # if it is not loaded, nothing has been compiled
    if vary or config is None:
        return nullcontext()
    settings = {"automatic_dynamic_shapes": False, "recompile_limit": MOST_COMPILED}
    patched: AbstractContextManager[object] = config.patch(settings)
    return patched
