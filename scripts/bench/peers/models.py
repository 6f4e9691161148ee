"""The problems that `compare.py` gives to all finders: models with random weights, their data and their memory.

Nobody is told a global batch. The other finders change the batch size and nothing else, so a batch that has to be kept
would leave them no choice; with a free one all have the same freedom, and autofit is told no more than they are.

The limit is real: during a trial `RLIMIT_DATA` leaves what the budget leaves beside the live tensors, as in autofit's
proof. What would falsify it, to the finders' loss, is kept out:

* A large step runs before the search: libraries keep buffers from their first one on (17 MiB for the GPT).
* A trial runs in a thread of its own. Once oneDNN was refused memory for a kernel, each later call in the same thread
  fails, with memory to spare too. Before its limit begins, the thread has its buffers for products.

Each function is also a target: `autofit tune scripts.bench.peers.models:gpt --memory 72MiB`. With `STEPS_FILE` in
the environment each optimizer step of the process appends a byte to that file: how the steps of processes that this
benchmark does not start itself are counted.
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
from autofit.probing.static_bytes import static_bytes
from autofit.strategies import members
from autofit.strategies.batching import MOST_TIMES_LARGER
from autofit.workloads.batches import BatchSource
from autofit.workloads.factory import as_arguments
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.workload import Workload
from scripts.bench import gain

STEPS_FILE = "PEERS_STEPS_FILE"
STEPS = 3
"""Steps of a trial where the finder leaves that to its user; Lightning's own `steps_per_trial`."""
WARM_UP_BATCHES = 8
"""The size, in batches of the user's, of the step before the search."""
PRODUCT = 1024
"""Rows and columns of a matrix whose product makes a library take the buffers of a thread."""
SEEN = "DefaultCPUAllocator: can't allocate memory"
"""What Lightning and accelerate take for an out-of-memory on a CPU."""
_counting = ExitStack()
"""What counts this process's steps. It is never left: the process ends with it."""


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
    """`scripts/bench/workloads.py`: a U-Net with GroupNorm that gives back images."""
    from scripts.bench import workloads  # noqa: PLC0415  # needs transformers, as the next one

    return _free(workloads.unet())


def encoder() -> Workload:
    """`scripts/bench/workloads.py`: a BERT with masked words, all texts of one length."""
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
"""What is trained, and the memory that its live tensors may take."""


def budget_bytes(name: str) -> int:
    """Returns the bytes that the live tensors of a model may take."""
    return parse_bytes(MODELS[name][1])


@contextmanager
def on_step(call: Callable[[], None]) -> Iterator[None]:
    """Calls back after each optimizer step of this process; steps on tensors without data do not count."""

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
    """Has each optimizer step of this process append a byte to a file, for as long as the process lives."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    _counting.enter_context(on_step(lambda: _append(descriptor)))


def _append(descriptor: int) -> None:
    os.write(descriptor, b".")


@dataclass
class Problem:
    """A model with what a finder may touch, and a record of what it did.

    Attributes:
        workload: model and loader; its optimizer is an instance with state.
        source: makes the user's loader at other batch sizes.
        budget_bytes: what live tensors may take.
        failures: out-of-memories provoked.
        translated: those of them that the finder cannot tell from another error, put into words that it can.
        steps: optimizer steps done.
        ran: settings, as keys of plans, with which a step was done.
        now: the setting that is running.
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
        """Makes a model and runs a large step: the optimizer has its state then, and libraries their buffers."""
        workload = MODELS[name][0]()
        workload = replace(workload, optimizer=workload.make_optimizer())
        workload.model.train()
        source = BatchSource.of(workload.loader)
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
        """The largest batch that is worth a try: the data, or where autofit's own space ends."""
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
        """Trains a few steps at a batch size; what fails raises."""
        self.now = key(size)
        self.optimizer.zero_grad(set_to_none=True)
        with self.draft(Plan()) as step:
            for batch in islice(self.batches(size), STEPS):
                step(batch)

    def trial(self, work: Callable[[], None], sees: Callable[[BaseException], bool] = lambda error: True) -> None:
        """Runs a trial of a finder under the limit, in a thread of its own, and counts it when it is out of memory.

        Args:
            work: the trial.
            sees: whether the finder takes an error for an out-of-memory; where it does not, one that it sees is raised.
        """

        def run() -> None:
            square = torch.ones(PRODUCT, PRODUCT)
            square @ square  # this thread's own buffers
            del square
            with self.watched(sees), self.limited():
                work()

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()

    def stepped(self) -> None:
        """Counts an optimizer step of what is running."""
        self.steps += 1
        self.ran.add(self.now)

    @contextmanager
    def limited(self, budget_bytes: int | None = None) -> Iterator[None]:
        """Leaves this process what the budget leaves beside the live tensors."""
        with self.draft(Plan()) as step:
            held = static_bytes(step)
        with devices.choose("cpu").limit(budget_bytes or self.budget_bytes, lambda: held):
            yield

    @contextmanager
    def watched(self, sees: Callable[[BaseException], bool] = lambda error: True) -> Iterator[None]:
        """Counts the out-of-memories inside; those that the finder would not see are raised in words that it does."""
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
    """Says whether a failure under the limit is for want of memory; oneDNN's words for it are ambiguous elsewhere."""
    status = classify(collect(error), device_is_host=True).status
    return status.does_not_fit or status is Status.AMBIGUOUS


def plan_of(size: int) -> Plan:
    """Returns what a finder of batch sizes has found."""
    return Plan(values={MICRO_BATCH_SIZE: size, ACCUMULATION_STEPS: 1})


def key(size: int) -> str:
    """Returns how a batch size is remembered."""
    return plan_of(size).key
