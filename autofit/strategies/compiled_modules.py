"""Compiled modules: tells whether the user has compiled a module or a part of it."""

from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Returns whether the module itself was compiled, as a wrapper or in place."""
    # By name: importing torch._dynamo takes seconds.
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def has_compiled_part(model: nn.Module) -> bool:
    """Returns whether the model or a module in it was compiled."""
    return any(map(is_compiled, model.modules()))
