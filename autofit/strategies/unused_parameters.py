"""What a pass of the user's step may leave without a gradient, and the knob by which ranks look for it.

Passes without data show it. A pass may depend on its data, as one through experts does, or on random numbers, as one
that skips layers does. So conditions that no copy without data can decide are tried both ways.
"""

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from torch import nn

from autofit.core.errors import Untraceable
from autofit.core.knob import Knob
from autofit.strategies.base import Facts
from autofit.strategies.shards import blocks_to_shard, noted
from autofit.strategies.undo import Undo
from autofit.torch_internals import numbering_of_exchanges


@dataclass(frozen=True, slots=True)
class Unused:
    """What a pass may leave without a gradient.

    Attributes:
        knobs: the knob by which ranks look for parameters without a gradient in each pass, if they have to. Otherwise
            the reducer of replicas waits for all gradients, and the next step fails.
        block: name of a whole block that a pass may skip, by a condition; "" if none is known.
    """

    knobs: tuple[Knob, ...] = ()
    block: str = ""

    @classmethod
    def of(cls, facts: Facts, name: str) -> Self:
        """Returns what passes of the user's step leave out, unless the user pins the knob of this name."""
        pinned = facts.pinned.get(name)
        some, block = _left_out(facts) if pinned is None else (bool(pinned), "")
        about = "whether ranks look for parameters without a gradient in each pass, as some of this model have none"
        knob = Knob(name=name, values=(some,), default=some, about=about)
        return cls((knob,) if some or pinned is not None else (), block)

    @property
    def some(self) -> bool:
        """Whether ranks look for parameters without a gradient."""
        return any(knob.default is True for knob in self.knobs)


def _left_out(facts: Facts) -> tuple[bool, str]:
    """Returns whether a pass may leave trainable parameters without a gradient, and a block that it may skip.

    One that cannot run without data may; one that draws from the generators of Python or NumPy, which may skip layers;
    and one that uses others where conditions are false.
    """
    found, gotten, drawn = set[str](), set[str](), list[bytes]()

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        found.update(trained)
        gotten.clear()
        drawn.append(_random_state())
        with Undo() as undo:
            undo.set(numbering_of_exchanges(), "random", random.Random())  # else it draws from the other
            for name, parameter in trained.items():
                hook: Any = partial(noted, gotten, name)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                undo.callback(handle.remove)
            yield
        drawn.append(_random_state())

    if facts.rehearse is None:
        return False, ""
    try:
        decided = facts.rehearse(watch)
    except Untraceable:
        return True, ""
    some, first = found != gotten or len(set(drawn)) > 1, set(gotten)
    if not decided:
        return some, ""
    try:
        facts.rehearse(watch, conditions=False)
    except Untraceable:  # such as a check that values are finite, which no training fails
        return some, ""
    return some or found != gotten, _skipped(facts.model, first ^ gotten)


def _skipped(model: nn.Module, differing: set[str]) -> str:
    """Returns the name of the first block whose trained parameters all have a gradient in one pass only; "" if none."""
    blocks = blocks_to_shard(model)
    for name, module in model.named_modules():
        trained = {f"{name}.{part}" for part, each in module.named_parameters() if each.requires_grad}
        if module in blocks and trained and trained <= differing:
            return str(name)
    return ""


def _random_state() -> bytes:
    """Returns the state of the random generators of Python and NumPy, with which models skip layers.

    torch's own are those of dropout. Where a model decides by what they draw, it asks for a condition.
    """
    return pickle.dumps((random.getstate(), np.random.get_state()))
