"""Problems for a search: knobs, spaces, and fake benches that are fixed or drawn from a seed."""

import random
from collections.abc import Sequence
from typing import Any

from autofit.core.knob import Knob
from scripts.bench.search.simulated import MIB, Effect, FakeBench, space_of

PRECISION = Knob(name="precision", values=("float32", "tf32", "bf16"), default="float32", growth=(1.0, 1.0, 0.65))
CHECKPOINT = Knob(
    name="checkpoint",
    values=("none", "third", "half", "all"),
    default="none",
    expected=tuple(1 / (1 + share / 3) for share in (0, 1 / 3, 1 / 2, 1)),
    growth=tuple(1 - 0.75 * share for share in (0, 1 / 3, 1 / 2, 1)),
)
OPTIMIZER = Knob(name="optimizer", values=("own", "foreach", "fused"), default="own")
FORMAT = Knob(name="memory_format", values=("contiguous", "channels_last"), default="contiguous")
KNOBS = (PRECISION, CHECKPOINT, OPTIMIZER, FORMAT)


def random_bench(seed: int, knobs: Sequence[Knob] = KNOBS) -> FakeBench:
    """Returns a fake problem: model, device, user's batch and budget are drawn from `seed`."""
    draw = random.Random(seed)
    sizes = draw.choice(((4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32), (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)))
    own = draw.choice(sizes[1:4])
    total = None if sizes[-1] == 128 else draw.choice((None, sizes[-1]))
    activations = sorted((draw.uniform(0.2, 0.9) for _ in range(3)), reverse=True)
    recompute = sorted(draw.uniform(1.03, 1.4) for _ in range(3))
    effects: dict[tuple[str, object], Effect] = {
        ("precision", "tf32"): Effect(compute=draw.uniform(0.5, 1.0)),
        ("precision", "bf16"): Effect(
            compute=draw.uniform(0.3, 1.15), launch=draw.uniform(1.0, 1.3), activations=draw.uniform(0.5, 0.75)
        ),
        ("optimizer", "foreach"): Effect(update=draw.uniform(0.3, 0.8), fixed_mib=draw.uniform(0, 200)),
        ("optimizer", "fused"): Effect(update=draw.uniform(0.15, 0.7)),
        ("memory_format", "channels_last"): Effect(compute=draw.uniform(0.75, 1.15)),
    }
    for value, memory, time in zip(("third", "half", "all"), activations, recompute, strict=True):
        effects["checkpoint", value] = Effect(compute=time, launch=time, activations=memory)
    bench = FakeBench(
        space=space_of(knobs, sizes, own, total),
        budget_bytes=0,
        effects=effects,
        seed=seed,
        static_mib=draw.uniform(50, 2000),
        gradient_mib=draw.uniform(10, 400),
        sample_mib=draw.uniform(5, 100),
        logits_mib=draw.uniform(0, 40),
        compute_s=10 ** draw.uniform(-4, -1.7),
        launch_s=10 ** draw.uniform(-3, -1.5),
        update_s=10 ** draw.uniform(-3, -1.7),
        decline=draw.choice((0.0, 0.0, 0.05)),
        knee=draw.choice((8, 16, 32)),
        interaction=0.015,
        noise=draw.choice((0.02, 0.05)),
        drift=draw.choice((0.01, 0.02)),
    )
    need = bench.peak_bytes(bench.space.baseline) - bench.static_mib * MIB
    bench.budget_bytes = round(bench.static_mib * MIB + need * draw.choice((0.7, 1.05, 1.5, 2.5, 5.0, 20.0)))
    return bench


def small_bench(**changes: Any) -> FakeBench:
    """Returns a calm bench of 3 x 4 x 3 x 2 combinations and 5 sizes on which the user's own batch of 8 fits."""
    effects = {
        ("precision", "tf32"): Effect(compute=0.8),
        ("precision", "bf16"): Effect(compute=0.5, activations=0.6),
        ("checkpoint", "third"): Effect(compute=1.1, activations=0.7),
        ("checkpoint", "half"): Effect(compute=1.2, activations=0.5),
        ("checkpoint", "all"): Effect(compute=1.33, activations=0.25),
        ("optimizer", "foreach"): Effect(update=0.6),
        ("optimizer", "fused"): Effect(update=0.4),
        ("memory_format", "channels_last"): Effect(compute=1.05),
    }
    fields: dict[str, Any] = {
        "space": space_of(KNOBS, (4, 8, 16, 32, 64), 8),
        "budget_bytes": 1500 * MIB,
        "effects": effects,
        "noise": 0.01,
        "drift": 0.005,
    }
    return FakeBench(**(fields | changes))
