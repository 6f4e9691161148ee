"""Synthetic problems with a known trap: variants of the simulated device with other costs, memory or faults."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autofit.core.knob import Knob
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from scripts.bench.search.simulated import Effect, FakeBench, always, costs_of_a_device, space_of

SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96)
PRECISION = Knob(
    name="precision", values=("fp32", "tf32", "bf16", "fp16"), default="fp32", growth=(1.0, 1.0, 0.65, 0.65)
)
HOST_PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32", growth=(1.0, 0.65))
CHECKPOINTING = Knob(
    name="checkpointed_blocks",
    values=(0, 3, 6, 9, 12),
    default=0,
    expected=tuple(1 / (1 + k / 36) for k in (0, 3, 6, 9, 12)),  # these two as in the strategy
    growth=tuple(1 - 0.75 * k / 12 for k in (0, 3, 6, 9, 12)),
)
FORMAT = Knob(name="memory_format", values=("default", "channels_last"), default="default")
OPTIMIZER = Knob(name="optimizer_implementation", values=("default", "foreach", "fused"), default="default")
TRANSFORMER, CONVOLUTIONS = (PRECISION, CHECKPOINTING, OPTIMIZER), (PRECISION, FORMAT, OPTIMIZER)
HOST = (HOST_PRECISION, CHECKPOINTING, OPTIMIZER)
HALF = ("bf16", "fp16")


# Common to the devices of all traps.


def _device(
    chance: random.Random,
    knobs: Sequence[Knob] = TRANSFORMER,
    sizes: Sequence[int] = SIZES,
    baseline_size: int = 8,
    total: int | None = None,
    room: int = 32,
    **changes: Any,
) -> FakeBench:
    """Returns a device on which the baseline's combination fits up to a micro batch size of about `room`."""
    effects = _effects(chance) | changes.pop("effects", {})
    fields: dict[str, Any] = costs_of_a_device(chance, launch_s=0.015)
    space = space_of(knobs, sizes, baseline_size, total)
    bench = FakeBench(space=space, budget_bytes=0, effects=effects, seed=chance.randrange(1000), **(fields | changes))
    combination = space.baseline.combination
    steps = 1 if total is None else 2
    limit = Plan(values={**combination.values, "micro_batch_size": room, "accumulation_steps": steps})
    bench.budget_bytes = round(1.02 * bench.peak_bytes(limit))
    return bench


def _effects(chance: random.Random) -> dict[tuple[str, object], Effect]:
    def about(value: float, spread: float = 0.05) -> float:
        return value * chance.uniform(1 - spread, 1 + spread)

    return {
        ("precision", "tf32"): Effect(compute=about(0.75)),
        ("precision", "bf16"): Effect(compute=about(0.5), launch=1.1, activations=about(0.62)),
        ("precision", "fp16"): Effect(compute=about(0.5), launch=1.15, update=1.2, activations=about(0.62)),
        ("checkpointed_blocks", 3): Effect(compute=1.08, launch=1.08, activations=0.81),
        ("checkpointed_blocks", 6): Effect(compute=1.16, launch=1.16, activations=0.62),
        ("checkpointed_blocks", 9): Effect(compute=1.24, launch=1.24, activations=0.42),
        ("checkpointed_blocks", 12): Effect(compute=1.32, launch=1.32, activations=0.22),
        ("memory_format", "channels_last"): Effect(compute=about(0.9)),
        ("optimizer_implementation", "foreach"): Effect(update=about(0.6), fixed_mib=300),
        ("optimizer_implementation", "fused"): Effect(update=about(0.4)),
    }


# The traps. The docstring of each is its description in reports.


def _plain(chance: random.Random) -> FakeBench:
    """No trap: lower precision, larger batches and cheaper optimizer steps are faster, as expected."""
    return _device(chance)


def _largest_is_slow(chance: random.Random) -> FakeBench:
    """The largest batch that fits is slow: beyond 16 samples, each doubling makes a sample 15 % slower."""
    return _device(chance, CONVOLUTIONS, room=64, decline=0.15, knee=16, launch_s=0.004, update_s=0.004)


def _cliff(chance: random.Random) -> FakeBench:
    """A cliff near the limit: above 88 % of the budget the allocator flushes its cache, and steps take 50 % longer."""
    bench = _device(chance, launch_s=0.04)
    edge = 0.88 * bench.budget_bytes
    return replace(bench, slower=lambda plan: 1.5 if bench.peak_bytes(plan) > edge else 1.0)


def _hole(chance: random.Random) -> FakeBench:
    """Not monotone: at 16 and 24 samples a library takes a workspace that does not fit; larger sizes run."""
    bench = _device(chance, CONVOLUTIONS, launch_s=0.05, room=48)
    more = bench.budget_bytes / 2**20
    return replace(bench, extra_mib=lambda plan: more if plan.micro_batch_size in (16, 24) else 0.0)


def _odd_sizes(chance: random.Random) -> FakeBench:
    """Uneven sizes: sizes above 16 that are not multiples of 32 run 15 % slower, because their tiles are half empty."""

    def slower(plan: Plan) -> float:
        return 1.15 if plan.micro_batch_size > 16 and plan.micro_batch_size % 32 else 1.0

    sizes = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80)
    return _device(chance, sizes=sizes, room=24, slower=slower)


def _ties(chance: random.Random) -> FakeBench:
    """Ties: precision, optimizer and any batch from 16 on are within 1 % of each other; only memory differs."""
    effects = {
        ("precision", "tf32"): Effect(compute=0.995),
        ("precision", "bf16"): Effect(compute=0.995, activations=0.6),
        ("precision", "fp16"): Effect(compute=1.0, activations=0.6),
        ("optimizer_implementation", "foreach"): Effect(update=0.9),
        ("optimizer_implementation", "fused"): Effect(update=0.85),
    }
    return _device(chance, effects=effects, launch_s=0.0005, update_s=0.0005, compute_s=0.01, interaction=0.001)


def _only_together(chance: random.Random) -> FakeBench:
    """Faster only together: channels_last is 12 % slower in float32 and 30 % faster in half precision."""

    def slower(plan: Plan) -> float:
        if plan.values["memory_format"] == "default":
            return 1.0
        return 0.7 if plan.values["precision"] in HALF else 1.12

    effects = {
        ("memory_format", "channels_last"): Effect(),
        ("precision", "bf16"): Effect(compute=0.97, activations=0.62),
        ("precision", "fp16"): Effect(compute=0.98, activations=0.62, update=1.2),
    }
    return _device(chance, CONVOLUTIONS, effects=effects, slower=slower)


def _needs_checkpointing(chance: random.Random) -> FakeBench:
    """The best batch fits only with checkpointing: a micro step is mostly launches, and 4 samples fit without it."""
    return _device(chance, launch_s=0.12, room=4, baseline_size=2)


def _heavy_noise(chance: random.Random) -> FakeBench:
    """Heavy noise: steps vary by 12 %, runs by 4 %, on a host that does not enforce the budget."""
    return _device(chance, HOST, noise=0.12, drift=0.04)


def _drifting(chance: random.Random) -> FakeBench:
    """Drift: the speed of the machine varies by 8 % over minutes, on a host that does not enforce the budget."""
    return _device(chance, HOST, noise=0.02, drift=0.08)


def _static_memory(chance: random.Random) -> FakeBench:
    """Static memory dominates: weights and optimizer state take 90 % of the budget, and `foreach` never fits."""
    effects = {("optimizer_implementation", "foreach"): Effect(update=0.5, fixed_mib=2500)}
    return _device(
        chance, effects=effects, static_mib=14000.0, gradient_mib=700.0, sample_mib=60.0, update_s=0.06, room=16
    )


def _huge_win(chance: random.Random) -> FakeBench:
    """One large gain: bfloat16 takes a quarter of the time, and nothing else matters much."""
    effects = {
        ("precision", "bf16"): Effect(compute=0.2, activations=0.55),
        ("precision", "fp16"): Effect(compute=0.9, launch=1.15, update=1.2, activations=0.6),
    }
    return _device(chance, effects=effects, compute_s=0.02, update_s=0.004)


def _few_divisors(chance: random.Random) -> FakeBench:
    """A global batch of 186 with few divisors: 1, 2, 3, 6, 31, 62, 93, 186; in float32 31 does not fit."""
    return _device(chance, sizes=(1, 2, 3, 6, 31, 62, 93, 186), baseline_size=6, total=186, room=27)


def _accumulation(chance: random.Random) -> FakeBench:
    """A global batch of 256 is kept: a larger micro batch saves launches and nothing else."""
    return _device(chance, sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256), baseline_size=8, total=256, room=40)


def _own_is_best(chance: random.Random) -> FakeBench:
    """Nothing is faster than the baseline: an old chip, and a batch size that is already right."""
    effects = {
        ("precision", "tf32"): Effect(compute=1.0),
        ("precision", "bf16"): Effect(compute=1.25, activations=0.62),
        ("precision", "fp16"): Effect(compute=1.1, launch=1.2, update=1.2, activations=0.62),
        ("optimizer_implementation", "foreach"): Effect(update=1.1),
        ("optimizer_implementation", "fused"): Effect(update=1.2),
    }
    return _device(
        chance, effects=effects, baseline_size=32, room=48, decline=0.15, knee=8, launch_s=0.02, interaction=0.001
    )


def _own_is_too_large(chance: random.Random) -> FakeBench:
    """The 64 samples of the baseline do not fit in float32; 20 would."""
    return _device(chance, baseline_size=64, room=20)


def _faulty(chance: random.Random) -> FakeBench:
    """Plans fail for other reasons than memory: float16 overflows, and bfloat16 has no kernel for 32 samples."""
    bench = _device(chance)
    for combination in bench.space.combinations():
        for size in bench.space.sizes:
            plan = bench.space.at(combination, size)
            if plan.values["precision"] == "fp16":
                bench.faults[plan.key] = always(Status.NUMERIC, "the loss is not finite")
            elif plan.values["precision"] == "bf16" and size == 32:
                bench.faults[plan.key] = always(Status.LAUNCH_LIMIT, "no kernel for this shape")
    return bench


def _late_win(chance: random.Random) -> FakeBench:
    """A gain that small batches hide: half precision doubles the launches, so it is faster only from 16 samples on."""
    effects = {
        ("precision", "tf32"): Effect(compute=0.9),
        ("precision", "bf16"): Effect(compute=0.4, launch=2.2, activations=0.62),
        ("precision", "fp16"): Effect(compute=0.42, launch=2.4, update=1.2, activations=0.62),
    }
    return _device(chance, effects=effects, baseline_size=2, launch_s=0.03)


def _early_win(chance: random.Random) -> FakeBench:
    """A gain that large batches lose: the optimizer takes most of a step at 2 samples, and a quarter at 32."""
    return _device(chance, baseline_size=2, update_s=0.05)


TRAPS: dict[str, Callable[[random.Random], FakeBench]] = {
    make.__name__.strip("_"): make
    for make in (
        _plain, _largest_is_slow, _cliff, _hole, _odd_sizes, _ties, _only_together, _needs_checkpointing, _heavy_noise,
        _drifting, _static_memory, _huge_win, _few_divisors, _accumulation, _own_is_best, _own_is_too_large, _faulty,
        _late_win, _early_win,
    )
}  # fmt: skip
"""Every trap by its name."""
