"""The problems that `compare.py` gives to all finders: models with random weights, their data and their memory limit.

No finder gets a global batch size to keep. The other finders change only the batch size, so a fixed global batch would
leave them no choice. With a free one, all finders have the same freedom, and autofit knows no more than they do.

The limit is real: during a trial, `RLIMIT_DATA` allows what the budget leaves beside the live tensors, as in autofit's
proof. Two effects that would put the other finders at a disadvantage are excluded:

* A large step runs before the search, because libraries keep buffers from their first large step on (17 MiB for GPT).
* A trial runs in its own thread. Once oneDNN has failed to allocate memory for a kernel, each later call in the same
  thread fails too, even with free memory. The thread allocates its buffers for matrix products before its limit begins.

Each function is also a target: `autofit tune scripts.bench.peers.models:gpt --memory 72MiB`. With `STEPS_FILE` in the
environment, each optimizer step of the process appends a byte to that file. This counts the steps of processes that the
benchmark does not start itself.
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from autofit import devices
from autofit.core.outcome import Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.units import parse_bytes
from autofit.failures.classify import classify
from autofit.failures.evidence import collect
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.batching import MOST_TIMES_LARGER
from autofit.workloads.batches import BatchSource
from autofit.workloads.factory import as_arguments
from autofit.workloads.loss import resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, TrainStep, static_bytes
from autofit.workloads.workload import Workload
from scripts.bench import gain

STEPS_FILE = "PEERS_STEPS_FILE"
STEPS = 3
"""Steps of a trial if the finder leaves them to its user; the default of Lightning's `steps_per_trial`."""
WARM_UP_BATCHES = 8
"""Size of the step before the search, as a multiple of the user's batch size."""
PRODUCT = 1024
"""Rows and columns of a matrix product that makes a library allocate its buffers for a thread."""
SEEN = "DefaultCPUAllocator: can't allocate memory"
"""Text by which Lightning and accelerate recognise an out-of-memory error on a CPU."""
_counting = ExitStack()
"""Holds the hook that counts the steps of this process. It stays open until the process ends."""


def gpt() -> Workload:
    """`examples/gpt.py`: texts of varying length, most of them short."""
    return _example("gpt")


def convnet() -> Workload:
    """`examples/convnet.py`: convolutions with BatchNorm on images."""
    return _example("convnet")


def huggingface() -> Workload:
    """`examples/huggingface.py`: a BERT of transformers on sentences of varying length."""
    return _example("huggingface")


def tabular() -> Workload:
    """`examples/tabular.py`: a residual MLP on rows of a table."""
    return _example("tabular")


def unet() -> Workload:
    """`scripts/bench/workloads.py`: a U-Net with GroupNorm that returns images."""
    from scripts.bench import workloads  # noqa: PLC0415  # needs transformers, as the next one

    return _free(workloads.unet())


def encoder() -> Workload:
    """`scripts/bench/workloads.py`: a BERT with masked words; all texts have one length."""
    from scripts.bench import workloads  # noqa: PLC0415

    return _free(workloads.encoder())


MODELS: dict[str, tuple[Callable[[], Workload], str]] = {
    "gpt": (gpt, "72MiB"),
    "convnet": (convnet, "96MiB"),
    "huggingface": (huggingface, "64MiB"),
    "tabular": (tabular, "32MiB"),
    "unet": (unet, "96MiB"),
    "encoder": (encoder, "64MiB"),
}
"""By name: the workload, and the memory limit of its live tensors."""


def budget_bytes(name: str) -> int:
    """Returns the memory limit of the live tensors of a model, in bytes."""
    return parse_bytes(MODELS[name][1])


@contextmanager
def on_step(call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` after each optimizer step of this process; steps on fake tensors do not count."""

    def done(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if not isinstance(optimizer.param_groups[0]["params"][0], FakeTensor):
            call()

    handle = register_optimizer_step_post_hook(done)
    try:
        yield
    finally:
        handle.remove()


def _example(name: str) -> Workload:
    return _free(gain.load(name).make_workload())


def _free(made: object) -> Workload:
    if path := os.environ.get(STEPS_FILE):
        _count_into(path)
    return replace(Workload(**as_arguments(made, "the model's function")), global_batch_size=None)


def _count_into(path: str) -> None:
    """Makes each optimizer step of this process append a byte to a file, until the process ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _counting.enter_context(on_step(lambda: _append(descriptor)))


def _append(descriptor: int) -> None:
    os.write(descriptor, b".")


@dataclass
class Problem:
    """A model with everything that a finder may use, and a record of its use.

    Attributes:
        workload: model and loader; its optimizer is an instance with state.
        source: makes the user's loader at other batch sizes.
        budget_bytes: memory limit of the live tensors.
        failures: number of out-of-memory errors that the finder caused.
        translated: number of those that were raised again with a text that the finder recognises.
        steps: completed optimizer steps.
        ran: keys of the plans with which a step was completed.
        now: key of the plan that is running.
    """

    workload: Workload
    source: BatchSource
    budget_bytes: int
    failures: int = 0
    translated: int = 0
    steps: int = 0
    ran: set[str] = field(default_factory=set)
    now: str = ""

    @classmethod
    def of(cls, name: str) -> "Problem":
        """Makes a model and runs a large step: then the optimizer has its state, and libraries have their buffers."""
        workload = MODELS[name][0]()
        workload = replace(workload, optimizer=workload.make_optimizer())
        workload.model.train()
        source = source_of(workload.loader)
        problem = cls(workload, source, budget_bytes(name))
        with problem.draft(Plan()) as step:
            step(source.worst(min(WARM_UP_BATCHES * source.user_batch_size, problem.most)))
        return problem

    def __post_init__(self) -> None:
        batch = self.source.typical(2, 1)[0]
        w = self.workload
        self.loss = resolve_loss(w.model, batch, loss_fn=w.loss_fn, step_fn=w.step_fn)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the training."""
        assert isinstance(self.workload.optimizer, torch.optim.Optimizer), "made with the problem"
        return self.workload.optimizer

    @property
    def most(self) -> int:
        """The largest useful batch size: the size of the data set, or the end of autofit's search space."""
        return min(self.source.length or sys.maxsize, MOST_TIMES_LARGER * self.source.user_batch_size)

    def draft(self, plan: Plan) -> TrainStep:
        """Returns the training step of a plan."""
        model, clip = self.workload.model, self.workload.max_grad_norm
        draft = Draft(model, self.loss, self.optimizer, torch.device("cpu"), max_grad_norm=clip)
        return prepare(plan, draft, members())

    def batches(self, size: int) -> Iterator[Any]:
        """Yields the batches of the user's loader at another size, epoch after epoch."""
        return chain.from_iterable(repeat(self.source.rebuild(size)))

    def train(self, size: int) -> None:
        """Trains a few steps at a batch size; errors are raised."""
        self.now = key(size)
        self.optimizer.zero_grad(set_to_none=True)
        with self.draft(Plan()) as step:
            for batch in islice(self.batches(size), STEPS):
                step(batch)

    def trial(self, work: Callable[[], None], sees: Callable[[BaseException], bool] = lambda error: True) -> None:
        """Runs a trial of a finder under the limit, in its own thread, and counts out-of-memory errors.

        Args:
            work: the trial.
            sees: whether the finder recognises an error as out-of-memory; if not, one that it recognises is raised.
        """

        def run() -> None:
            square = torch.ones(PRODUCT, PRODUCT)
            square @ square  # allocates the buffers of this thread
            del square
            with self.watched(sees), self.limited():
                work()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()

    def stepped(self) -> None:
        """Counts an optimizer step of the running plan."""
        self.steps += 1
        self.ran.add(self.now)

    @contextmanager
    def limited(self, budget_bytes: int | None = None) -> Iterator[None]:
        """Limits the memory of this process to what the budget leaves beside the live tensors."""
        with self.draft(Plan()) as step:
            held = static_bytes(step)
        with devices.choose("cpu").limit(budget_bytes or self.budget_bytes, lambda: held):
            yield

    @contextmanager
    def watched(self, sees: Callable[[BaseException], bool] = lambda error: True) -> Iterator[None]:
        """Counts out-of-memory errors; replaces one that the finder does not recognise by one with a known text."""
        text = ""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not no_memory(error):
                raise
            self.failures += 1
            if sees(error):
                raise
            text = f"{type(error).__name__}: {error}"
        if text:
            self.translated += 1
            raise RuntimeError(f"{SEEN} (as {text})")


def no_memory(error: BaseException) -> bool:
    """Returns whether a failure under the limit is due to memory. oneDNN's texts are ambiguous in other places."""
    status = classify(collect(error), device_is_host=True).status
    return status.does_not_fit or status is Status.AMBIGUOUS


def plan_of(size: int) -> Plan:
    """Returns the plan for a batch size that a finder returned."""
    return Plan(values={MICRO_BATCH_SIZE: size, ACCUMULATION_STEPS: 1})


def key(size: int) -> str:
    """Returns the key of the plan for a batch size."""
    return plan_of(size).key
