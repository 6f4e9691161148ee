"""The large spaces by name: knobs as the strategies offer them, and the true effects of their values."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from autofit.core.knob import Knob
from autofit.core.space import Conflict, SearchSpace
from scripts.bench.search import traps
from scripts.bench.search.large import Choice, LargeBench
from scripts.bench.search.simulated import Effect, costs_of_a_device, space_of
from scripts.bench.search.traps import CHECKPOINTING

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80)
PRECISION = traps.PRECISION.model_copy(update={"expected": (1.0, 1.3, 1.5, 1.45), "ceiling": (1.0, 4.0, 5.0, 5.0)})
COMPILE = Knob(
    name="compile",
    values=("off", "default", "max-autotune", "reduce-overhead"),
    default="off",
    expected=(1.0, 1.35, 1.35, 1.35),
    ceiling=(1.0, 2.5, 2.5, 5.0),
    warm_up_s=(0.0, 3.0, 15.0, 3.0),
)
SELECTIVE = Knob(name="selective", values=("off", "matmuls"), default="off", expected=(1.0, 1.05), growth=(1.0, 1.2))
ATTENTION = Knob(name="attention", values=("default", "flash", "cudnn"), default="default")
OPTIMIZER = Knob(name="optimizer", values=("default", "foreach", "fused", "8bit"), default="default")
LOSS = Knob(name="loss", values=("default", "chunked"), default="default", expected=(1.0, 0.95), growth=(1.0, 0.9))
FORMAT = Knob(name="memory_format", values=("default", "channels_last"), default="default")
OFFLOAD = Knob(name="offload", values=("none", "activations"), default="none", expected=(1.0, 0.8), growth=(1.0, 0.4))
KNOBS = (PRECISION, COMPILE, CHECKPOINTING, OPTIMIZER, SELECTIVE, ATTENTION, LOSS, FORMAT, OFFLOAD)
COMPILE_S: dict[Choice, float] = {
    ("compile", "default"): 12.0,
    ("compile", "max-autotune"): 60.0,
    ("compile", "reduce-overhead"): 20.0,
}
CONFLICTS = (
    Conflict(values={"selective": "matmuls", "checkpointed_blocks": 0}, reason="nothing is checkpointed"),
    Conflict(values={"compile": "reduce-overhead", "offload": "activations"}, reason="CUDA graphs cannot wait"),
)
FEW = (PRECISION, COMPILE.only(COMPILE.values[:3]), CHECKPOINTING, OPTIMIZER.only(("default", "fused", "8bit")))
SOME = {"2k": FEW, "20k": KNOBS[:6], "200k": KNOBS}
SWITCHES = {"2k": 4, "20k": 7, "200k": 9}
"""Knobs, and numbers of switches, by about the number of plans that they make."""


def _device(chance: random.Random, knobs: Sequence[Knob], room: int = 24, **changes: Any) -> LargeBench:
    """Returns a device on which the baseline's combination fits up to a micro batch size of `room`."""
    names = {knob.name for knob in knobs}
    allowed = tuple(each for each in CONFLICTS if each.values.keys() <= names)
    space = space_of(knobs, SIZES, 8)
    fields: dict[str, Any] = {
        **costs_of_a_device(chance, launch_s=0.020),
        "cliffs": {12: 1.06, 24: 1.04, 40: 1.08},
        "compile_s": {choice: seconds for choice, seconds in COMPILE_S.items() if choice[0] in names},
        "failing": frozenset({("attention", "cudnn")} if ATTENTION in knobs else ()),
    }
    effects = {choice: effect for choice, effect in _effects(chance).items() if choice[0] in names}
    bench = LargeBench(
        space=SearchSpace(space.facts.model_copy(update={"forbidden": allowed})),
        budget_bytes=0,
        effects=effects | changes.pop("effects", {}),
        seed=chance.randrange(1000),
        **(fields | changes),
    )
    bench.budget_bytes = round(1.02 * bench.peak_bytes(bench.space.at(bench.space.baseline.combination, room)))
    return bench


def _effects(chance: random.Random) -> dict[Choice, Effect]:
    def about(value: float, spread: float = 0.05) -> float:
        return value * chance.uniform(1 - spread, 1 + spread)

    blocks: dict[Choice, Effect] = {
        ("checkpointed_blocks", k): Effect(compute=1 + k / 37, launch=1 + k / 37, activations=1 - 0.065 * k)
        for k in (3, 6, 9, 12)
    }
    return {
        **blocks,
        ("precision", "tf32"): Effect(compute=about(0.75)),
        ("precision", "bf16"): Effect(compute=about(0.5), launch=1.1, activations=about(0.62)),
        ("precision", "fp16"): Effect(compute=about(0.5), launch=1.15, update=1.2, activations=about(0.62)),
        ("compile", "default"): Effect(compute=about(0.85), launch=about(0.4), activations=about(0.85)),
        ("compile", "max-autotune"): Effect(compute=about(0.83), launch=about(0.4), activations=about(0.85)),
        ("compile", "reduce-overhead"): Effect(compute=about(0.86), launch=about(0.15), fixed_mib=300),
        ("optimizer", "foreach"): Effect(update=about(0.6), fixed_mib=300),
        ("optimizer", "fused"): Effect(update=about(0.4)),
        ("optimizer", "8bit"): Effect(update=about(0.9), fixed_mib=-400),
        ("selective", "matmuls"): Effect(compute=about(0.93, 0.02), activations=about(1.2)),
        ("attention", "flash"): Effect(compute=about(0.92), activations=about(0.8)),
        ("loss", "chunked"): Effect(compute=about(1.02, 0.01), activations=about(0.93)),
        ("memory_format", "channels_last"): Effect(compute=about(1.05)),
        ("offload", "activations"): Effect(compute=about(1.25), activations=about(0.45)),
    }


# The docstring of each is its description in reports.


def _plain(chance: random.Random, knobs: Sequence[Knob]) -> LargeBench:
    """Strategies as expected: compilation, half precision, a fused optimizer and flash attention pay."""
    return _device(chance, knobs)


def _short_memory(chance: random.Random, knobs: Sequence[Knob]) -> LargeBench:
    """Memory is short: 4 samples fit without a strategy that saves memory, and a step is mostly launches."""
    return _device(chance, knobs, room=8, launch_s=0.10)


def _together(chance: random.Random, knobs: Sequence[Knob]) -> LargeBench:
    """Values that depend on others: compilation pays only in half precision, and a fused optimizer only without it."""
    pairs: dict[tuple[Choice, Choice], float] = {(("optimizer", "fused"), ("precision", "bf16")): 1.12}
    for value in COMPILE.values[1:]:
        pairs |= {(("compile", value), ("precision", precision)): 1.35 for precision in ("fp32", "tf32")}
    return _device(chance, knobs, pairs=pairs)


def _nothing_pays(chance: random.Random, knobs: Sequence[Knob]) -> LargeBench:
    """Few values pay: an old chip, on which every change but the batch size costs up to 30 %."""
    effects: dict[Choice, Effect] = {
        (knob.name, value): Effect(compute=1 / chance.uniform(0.7, 1.0), launch=1 / chance.uniform(0.7, 1.0))
        for knob in knobs
        if knob is not CHECKPOINTING
        for value in knob.values[1:]
    }
    return _device(chance, knobs, effects=effects, interaction=0.002)


SHAPES = (_plain, _short_memory, _together, _nothing_pays)


def _irrelevant(chance: random.Random, count: int) -> LargeBench:
    """Many switches that change speed by 0 to -30 %, and half precision and two others that pay."""
    domains = [("off", "a", "b") if at < count // 2 else ("off", "a") for at in range(count)]
    switches = [Knob(name=f"switch_{at}", values=values, default="off") for at, values in enumerate(domains)]
    effects: dict[Choice, Effect] = {
        (knob.name, value): Effect(compute=1 / chance.uniform(0.7, 1.0))
        for knob in switches
        for value in knob.values[1:]
    }
    first, second = chance.sample(switches, 2)
    effects |= {(first.name, "a"): Effect(compute=0.85), (second.name, "a"): Effect(launch=0.4)}
    return _device(chance, (PRECISION, *switches), effects=effects)


def _made(shape: Callable[..., LargeBench], given: Any) -> Callable[[random.Random], LargeBench]:
    def make(chance: random.Random) -> LargeBench:
        return shape(chance, given)

    make.__doc__ = shape.__doc__
    return make


LARGE: dict[str, Callable[[random.Random], LargeBench]] = {
    **{
        f"{shape.__name__.strip('_')}_{label}": _made(shape, knobs) for label, knobs in SOME.items() for shape in SHAPES
    },
    **{f"irrelevant_{label}": _made(_irrelevant, count) for label, count in SWITCHES.items()},
}
"""Every large space by its name; the number of its plans is about what the name says."""


def large_space(name: str, seed: int = 0) -> LargeBench:
    """Returns the device of a space in `LARGE`; it is the same for the same seed."""
    return LARGE[name](random.Random(f"{name} {seed}"))
