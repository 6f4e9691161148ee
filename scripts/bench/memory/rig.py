"""One configuration of an architecture: its real steps with their peaks, and estimates of these peaks from traces."""

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from transformers import masking_utils

from autofit.core.plan import KnobValue, Plan
from autofit.memory.alignment import Mismatch
from autofit.memory.replay import replay
from autofit.memory.scaling import Scaling, scaling
from autofit.memory.trace import Trace
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.strategies.checkpointing import CHECKPOINTED_BLOCKS, Checkpointing
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.tracing import trace
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload
from scripts.bench.memory.architecture import Architecture, Configuration

GIB = 2**30
CUDA = torch.get_device_module("cuda")
STEPS = 3
SIZES = 10
SPREAD = 24  # ratio of the largest size to the smallest
GROWN = 1.2  # ratio of a peak to that at half the size, from which on activations dominate
WINDOW = 2
"""Number of sizes that are also tried above a size that does not fit."""
OPTIMIZERS = {"adamw": None, "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}

Peaks = tuple[int, int]
"""Peaks of allocated and reserved bytes."""


@dataclass
class Subject:
    """A configuration that can be run or traced.

    Args:
        device: device of the model; with a stand-in the model stays on the host.
        chip: the chip that the stand-in represents; None if the device is present.
    """

    architecture: Architecture
    configuration: Configuration
    device: torch.device
    chip: Chip | None = None
    workload: Workload = field(init=False)
    rule: LossRule = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        model = self.architecture.make().train()
        if self.chip is None:
            model.to(self.device)
        two = self.batch(2)
        optimizer = OPTIMIZERS[self.configuration.optimizer]
        self.workload = Workload(model, [two], loss_fn=self.architecture.loss_fn, optimizer=optimizer)
        home = next(model.parameters()).device
        here = map_tensors(two, lambda tensor: tensor.to(home))
        self.rule = resolve_loss(model, here, loss_fn=self.workload.loss_fn)

    def batch(self, size: int) -> Any:
        """Returns a batch on the host."""
        return self.architecture.batch(size, self.configuration.side)

    def plan(self, size: int) -> Plan:
        """Returns the plan at a micro batch size."""
        return Plan(values={"micro_batch_size": size, **self._knobs})

    @cached_property
    def _knobs(self) -> dict[str, KnobValue]:
        knobs = dict(self.configuration.knobs)
        wanted = knobs.get(CHECKPOINTED_BLOCKS)
        if wanted is not None:
            values = _checkpoints(self.workload.model, self.batch(1))
            knobs[CHECKPOINTED_BLOCKS] = values[-1] if wanted == "all" else values[len(values) // 2]
        return knobs

    def run(self, size: int) -> Peaks:
        """Returns the peaks of three real steps from an empty cache, as in a fresh process."""
        # Through the host, so that a model that a strategy changed in place lies on the device as a fresh one does.
        model = self.workload.model.cpu()
        clear()
        model.to(self.device)
        CUDA.reset_peak_memory_stats()
        self._steps(size)
        return CUDA.max_memory_allocated(), CUDA.max_memory_reserved()

    def _steps(self, size: int) -> None:
        model, plan = self.workload.model, self.plan(size)
        draft = Draft(model, self.rule, self.workload.make_optimizer(), self.device)
        part = self.batch(size)
        with values_as_on_a_device(), prepare(plan, draft, members()) as step:
            if draft.scaler is not None:
                # Random weights may overflow. A skipped update needs less memory, and traces contain the update.
                vars(draft.scaler)["_maybe_opt_step"] = lambda optimizer, state, *args, **kwargs: optimizer.step()
            for _ in range(STEPS):
                step(StepBatch.of([part] * plan.accumulation_steps))

    def trace(self, size: int) -> Trace:
        """Returns the trace at a size, without using device memory."""
        return trace(self.workload, self.rule, self.plan(size), self.batch(2), self.device, self.chip)


def _answering(function: Callable[..., Any], answer: object) -> Callable[..., Any]:
    """Returns a function that calls `function` for its allocations and returns another answer."""

    def run(*arguments: Any) -> Any:
        function(*arguments)
        return answer

    return run


@contextmanager
def values_as_on_a_device() -> Iterator[None]:
    """Gives code that asks for values the answers of a real device; on a phantom, values mean nothing.

    transformers leaves out a mask if no row holds several texts; checkpointing copies no buffer that stays equal.
    """
    texts, equal = masking_utils.find_packed_sequence_indices, torch.equal
    if "phantom" in os.environ.get("LD_PRELOAD", ""):
        masking_utils.find_packed_sequence_indices = _answering(texts, None)
        torch.equal = _answering(equal, True)
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices, torch.equal = texts, equal


def _checkpoints(model: nn.Module, batch: Any) -> tuple[KnobValue, ...]:
    """Returns how many blocks the strategy can checkpoint."""
    facts = Facts(model, batch, None, "cuda", frozenset(), "mixed", training=True, micro_batch_size=1)
    return Checkpointing().offer(facts).knobs[0].values


def clear() -> None:
    """Releases all cached memory, including the workspaces of cuBLAS."""
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    CUDA.empty_cache()


@dataclass
class SizeEstimator:
    """Estimates peaks at any size from traces at a few, as a search does: a size between traced ones is traced itself.

    Attributes:
        refused: why traces cannot be scaled; each size is then traced itself.
        trace_s: CPU seconds of each trace.
        replay_s: CPU seconds of each replay, including scaling to its size.
        retraced: sizes that were traced themselves, because scaling would have interpolated them.
        drawn: by size, the peaks that interpolation would have given for them.
    """

    subject: Subject
    traced: Sequence[int]
    trace_s: list[float] = field(default_factory=list)
    replay_s: list[float] = field(default_factory=list)
    refused: str = ""
    retraced: set[int] = field(default_factory=set)
    drawn: dict[int, Peaks] = field(default_factory=dict)
    _law: Scaling | Mismatch = field(init=False)
    _known: dict[int, Peaks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._law = scaling([self._trace(size) for size in self.traced])
        if isinstance(self._law, Mismatch):
            self.refused = self._law.reason

    def at(self, size: int) -> Peaks:
        """Returns the estimated peaks at a size."""
        if size not in self._known:
            self._known[size] = self._at(size)
        return self._known[size]

    def _at(self, size: int) -> Peaks:
        begun = time.process_time()
        found = self._law if isinstance(self._law, Mismatch) else self._law.at(size)
        if isinstance(found, Trace) and isinstance(self._law, Scaling) and not self._law.exact_at(size):
            peak = replay(found).peak
            self.drawn[size] = peak.allocated_bytes, peak.reserved_bytes
        if isinstance(found, Mismatch) or size in self.drawn:
            self.refused = self.refused or (found.reason if isinstance(found, Mismatch) else "")
            self.retraced.add(size)
            found = self._trace(size)
            begun = time.process_time()
        peak = replay(found).peak
        self.replay_s.append(time.process_time() - begun)
        return peak.allocated_bytes, peak.reserved_bytes

    def _trace(self, size: int) -> Trace:
        begun = time.process_time()
        found = self.subject.trace(size)
        self.trace_s.append(time.process_time() - begun)
        return found


def sizes(subject: Subject, capacity: int) -> list[int]:
    """Returns the sizes at which to measure a configuration, ascending, chosen by real peaks at small sizes."""
    unit, count = subject.architecture.unit, 1
    peaks = [subject.run(count * unit)[0] for count in (1, 2)]
    while peaks[-1] < GROWN * peaks[-2]:  # up to here, parameters and optimizer state dominate
        count *= 2
        peaks.append(subject.run(2 * count * unit)[0])
    most = min(subject.configuration.most_gib * GIB, int(0.7 * capacity))
    top = max(round((most - peaks[-1]) * count / (peaks[-1] - peaks[-2])) + 2 * count, SIZES)
    steps = (SPREAD ** (number / (SIZES - 1)) for number in range(SIZES))
    found = sorted({max(round(top / SPREAD * step), 1) for step in steps})
    spare = iter(range(1, top))
    while len(found) < SIZES:
        found = sorted({*found, next(spare)})
    return [count * unit for count in found]


def traced(found: Sequence[int], unit: int) -> list[int]:
    """Returns the sizes to trace: the smallest measured size, two in between, and one above the largest."""
    low, high = found[0] // unit, found[-1] // unit
    between = (round(low * (high / low) ** ratio) for ratio in (1 / 3, 2 / 3))
    return [count * unit for count in sorted({low, *between, high + WINDOW})]


def largest(fits: Callable[[int], bool], begin: int, most: int) -> int:
    """Returns the largest count up to `most` that fits, or 0 if none does.

    The search starts at `begin` and doubles its steps, because a check may cost a real run and the first guess is often
    right. Some sizes above one that does not fit are checked too: reserved memory does not always grow with the size.
    """
    low, high, step = begin, begin, 1
    if fits(begin):
        high = begin + 1
        while high <= most and fits(high):
            low, step = high, 2 * step
            high = min(low + step, most + 1)
    else:
        low = begin - 1
        while low > 0 and not fits(low):
            high, step = low, 2 * step
            low = max(low - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    above = (count for count in range(min(high + WINDOW, most), low, -1) if fits(count))
    return next(above, low)
