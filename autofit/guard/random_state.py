"""The global random generators of Python, numpy, torch and the running accelerator."""

import random
import sys
from typing import Any

import torch

from autofit.guard.object_state import ValuePiece


def global_rngs() -> list[ValuePiece]:
    """Returns the global random generators of Python, numpy, torch and each running device."""
    rngs = [
        ValuePiece("rng.python", random.getstate, random.setstate),
        ValuePiece("rng.torch", torch.get_rng_state, torch.set_rng_state),
    ]
    if (numpy := sys.modules.get("numpy")) is not None:
        generator = numpy.random
        rngs.append(ValuePiece("rng.numpy", lambda: generator.get_state(legacy=False), generator.set_state))
    if (accelerator := running_accelerator()) is not None:
        if hasattr(accelerator, "get_rng_state_all"):
            read, write = accelerator.get_rng_state_all, accelerator.set_rng_state_all
        else:
            read, write = accelerator.get_rng_state, accelerator.set_rng_state
        rngs.append(ValuePiece(f"rng.{accelerator_kinds()[0]}", read, write))
    return rngs


def running_accelerator() -> Any:
    """Returns torch's module of the accelerator if this process has initialised it, else None."""
    for kind in accelerator_kinds():
        module = torch.get_device_module(kind)
        # A back end without `is_initialized` (Metal) has nothing to initialise.
        if module.is_available() and getattr(module, "is_initialized", module.is_available)():
            return module
    return None


def accelerator_kinds() -> list[str]:
    """Returns the accelerator type that this torch was built for, if any."""
    device = torch.accelerator.current_accelerator()
    return [] if device is None else [device.type]
