"""TrainStep: one optimizer step under a plan. The probe measures this class and the user trains with it."""

import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count as counting
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import nn

from autofit.core.errors import UsageError, WorkloadError
from autofit.core.plan import Plan
from autofit.torch_internals import FakeTensor, default_store, is_traceable_wrapper_subclass
from autofit.workloads.batch_store import StepBatch, StepLoader
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.tree import Batch, map_tensors, pieces, tensors
from autofit.workloads.useful_targets import weights_of
from autofit.workloads.workload import Workload, state_tensors

if TYPE_CHECKING:  # a torch may be built without
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Draft", "Scheduler", "Splits", "StepBatch", "StepLoader", "TrainStep"]


PER_MACHINE = "LOCAL_WORLD_SIZE"
"""torchrun's variable with the number of ranks on a machine."""
Parts = Sequence[tuple[Batch, float]]
"""Micro batches of a step, each with its weight."""
TOGETHER_S, PAUSE_S = 10.0, 0.05
"""Seconds after which a rank that closes its step says that others have not, and seconds between two looks."""
TRACED_PASSES = 2
"""Number of passes that stand in a trace for those of micro batches of all ranks: later ones repeat the second."""
_meshes = counting()
"""Numbers the meshes of this process. torch caches by mesh, and takes one of the same name for a mesh whose group is
gone."""


class Scheduler(Protocol):
    """The interface of a learning rate scheduler: `TrainStep` calls `step()` after each optimizer step."""

    def step(self) -> Any:
        """Advances the schedule by one optimizer step."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that train together, as one of them sees them.

    Attributes:
        group: the process group through which they communicate.
        mesh: the mesh of their devices, with one dimension.
        grid: the same with two dimensions: the ranks of a row divide a model, and rows replicate it. None if it was not
            asked for.
        is_fake: whether the other ranks do not exist: collectives return at once, and what they would bring is
            meaningless.
        guarded: whether a guard puts the weights back after a step is closed, so that closing it brings nothing back,
            and waits for nobody.
    """

    group: "ProcessGroup"
    mesh: "DeviceMesh"
    grid: "DeviceMesh | None" = None
    is_fake: bool = False
    guarded: bool = False

    @classmethod
    def of(cls, group: "ProcessGroup", device_type: str, *, is_fake: bool = False, guarded: bool = False) -> Self:
        """Returns the ranks of a process group, each with a device of this type."""
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

        name = f"ranks {next(_meshes)}"
        mesh = DeviceMesh.from_group(group, device_type, mesh_dim_names=(name,))
        return cls(group, mesh, None, is_fake, guarded)

    def in_rows(self, new_group: Callable[[list[int]], Any]) -> Self:
        """Returns the same ranks with a grid. All of them must make it.

        Args:
            new_group: makes a process group of some ranks. All ranks call it for each group, in the same order.

        Raises:
            UsageError: they cannot be divided into rows, see `rows_of`.
        """
        from torch.distributed.device_mesh import DeviceMesh  # noqa: PLC0415

        rows = rows_of(self.count)
        if rows < 2:
            raise UsageError(
                f"found {self.count} ranks; expected 4 or more, in rows of equal length. Choose a layout without rows."
            )
        numbers = torch.arange(self.count).view(rows, -1)
        beside = [new_group(column) for column in numbers.T.tolist()][self.number % numbers.shape[1]]
        inside = [new_group(row) for row in numbers.tolist()][self.number // numbers.shape[1]]
        names = (f"rows {next(_meshes)}", f"in a row {next(_meshes)}")
        grid = DeviceMesh.from_group([beside, inside], self.mesh.device_type, mesh=numbers, mesh_dim_names=names)
        return replace(self, grid=grid)

    def all_close(self) -> bool:
        """Says that this rank closes its step, and waits for the others. Returns whether they can bring parts together.

        After `TOGETHER_S` without them they cannot if an error is handled here. Otherwise a warning says who is late.
        """
        failing = sys.exc_info()[1] is not None
        keys = [f"autofit/{self.mesh.mesh_dim_names}/closed by {rank}" for rank in range(self.count)]
        mine, until = keys[self.number], monotonic() + TOGETHER_S
        try:
            store = default_store()
            store.set(mine, "")
            while not store.check(keys):
                if monotonic() > until:
                    late = [str(rank) for rank, key in enumerate(keys) if not store.check([key])]
                    warnings.warn(_late(self.number, ", ".join(late), failing=failing), stacklevel=4)
                    if failing:
                        store.delete_key(mine)
                    return not failing
                sleep(PAUSE_S)
        except RuntimeError:  # the store has gone with the rank that had it
            return not failing
        return True

    @property
    def train(self) -> bool:
        """Whether what they compute is for the user: neither a rehearsal nor a probe."""
        return not (self.is_fake or self.guarded)

    @property
    def count(self) -> int:
        """The number of ranks."""
        return self.group.size()

    @property
    def number(self) -> int:
        """The number of this rank, from 0."""
        return self.group.rank()

    def make_alike(self, model: nn.Module) -> None:
        """Gives all ranks the parameters and buffers of rank 0, as `DistributedDataParallel` does. All must call it."""
        for tensor in (*model.parameters(), *model.buffers()) if not self.is_fake else ():
            self.broadcast(tensor, 0)

    @torch.no_grad()
    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Gives all ranks the content that a tensor has on one. All must call it, with tensors of the same shape."""
        sent = tensor.detach().contiguous()
        content = sent.view(-1).view(torch.uint8)  # not every back end knows every dtype
        torch.distributed.broadcast(content, group=self.group, group_src=source)
        tensor.copy_(sent)

    def exchanged(self, mine: Any) -> list[Any]:
        """Returns what each rank says, an object that can be pickled, in their order. All must call it."""
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, mine, group=self.group)
        return found

    def pooled(self, parts: Parts) -> Parts:
        """Returns the micro batches of all ranks, with their weights in the mean over ranks, on the host.

        Ranks that do not exist have those of this one; in a trace, `TRACED_PASSES` of them stand for all.
        """
        mine = [(map_tensors(part, torch.Tensor.cpu), weight) for part, weight in parts]
        found = [mine] * self.count if self.is_fake else self.exchanged(mine)
        if self.is_fake and any(isinstance(tensor, FakeTensor) for part, _ in mine for tensor in tensors(part)):
            del found[TRACED_PASSES:]
        # A step may change a batch, so that each pass has its own.
        return [(map_tensors(part, torch.clone), weight / self.count) for each in found for part, weight in each]


def _late(rank: int, others: str, *, failing: bool) -> str:
    """Returns what to say about ranks that have not closed their steps."""
    if failing:
        return (
            f"found an error on rank {rank}, and no end of the training on rank {others} within {TOGETHER_S:.0f} s; "
            "expected that all ranks close their steps, to bring weights together. The model stays divided. Start "
            "again from a checkpoint."
        )
    return (
        f"rank {rank} has waited {TOGETHER_S:.0f} s for rank {others} to close its step, and waits on: closing brings "
        "weights together. Call close() on all ranks, not on one alone."
    )


def rows_of(count: int) -> int:
    """Returns how many rows of ranks replicate a model that the ranks of a row divide; 1 if there are none.

    A row is a machine of a launch by torchrun with several machines. Otherwise there are two rows.
    """
    here = int(os.environ.get(PER_MACHINE, count))
    if here < count:
        return count // here if here > 1 and count % here == 0 else 1
    return 2 if count >= 4 and count % 2 == 0 else 1


class Exchange(Protocol):
    """What the passes of a step exchange between ranks, for a step that begins again after a failed pass.

    Ranks wait for each other in collective operations. So the rank that has failed completes them, and only then do all
    of them agree on what to do (`autofit.splitting`).
    """

    def learn(self, run: Callable[[], object]) -> None:
        """Learns from `run`, which runs one pass, what each pass exchanges. All ranks call it once."""

    def begin(self) -> None:
        """Exchanges what is due before the passes of a step. All ranks call it, once for each step."""

    def attempt(self) -> None:
        """Counts from now what passes exchange."""

    def complete(self, passes: int) -> None:
        """Exchanges what is left of `passes` passes, one of which has failed on this rank. The result means nothing."""

    def reset(self) -> None:
        """Makes passes possible after some that were completed so. All ranks call it."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The micro batches that a training has cut because they ran out of memory.

    Attributes:
        micro_batches: number of micro batches that were cut in two; a half that was cut again is one of them.
        largest_samples: number of samples of the largest micro batch that ran out of memory.
        first_at: UTC time in ISO 8601 of the first cut; "" if there was none.
        last_at: UTC time of the last cut.
    """

    micro_batches: int = 0
    largest_samples: int = 0
    first_at: str = ""
    last_at: str = ""


class Passes(Protocol):
    """Runs the micro batches of a step, in smaller parts if they run out of memory (`autofit.splitting`)."""

    splits: Splits

    def passes(self, step: "TrainStep", parts: Parts) -> torch.Tensor:
        """Does what `TrainStep.passes` does."""


@dataclass(slots=True)
class Draft:
    """A step under construction, which `autofit.prepare` turns into a `TrainStep`.

    Strategies change these fields in `apply` and restore them on exit.

    Attributes:
        model: the user's model, on `device`.
        loss: how the loss of one micro batch is computed, or who does the whole step (`LossRule.update`).
        optimizer: the optimizer. None in inference.
        device: device on which the step runs.
        autocast: returns a new context for each forward pass.
        scaler: gradient scaler for fp16, or the user's scaler.
        memory_format: memory format to which 4-d inputs are converted, or None.
        max_grad_norm: L2 norm to which gradients are clipped before the update. None does not clip.
        scheduler: learning rate scheduler that is advanced after each update.
        weighing: how micro batches are weighted if the loss is a mean over tokens or a sum, for example. None uses the
            weights of the `StepBatch`, which are shares of the samples.
        one_pass: whether each step has one micro batch, because its gradients are used up in one backward pass, or the
            step is done as a whole.
        stepping: whether the pass that is running is that of a step, and not only of its gradients.
        host_memory_bytes: main memory that was available when the step was made, for tensors of an accelerator; None if
            unknown.
        varies: whether batches differ in shape within a training.
        compiled: whether parts of the step are compiled when they first run.
        ranks: the ranks that train together; None if there is one.
        accumulating: returns a new context for each micro batch but the last of a step, whose gradients are not
            exchanged between ranks yet.
        together: whether all ranks compute each micro batch together, so that a step runs those of all ranks.
        exchange: what the passes exchange between ranks; None if there is one, or if a failed pass cannot be left.
        discard: lets go of what a failed pass has left, beside gradients of the optimizer's parameters; None: nothing.
        gathers: whether closing the step brings together what ranks have divided, so that all of them must close it.
    """

    model: nn.Module
    loss: LossRule
    optimizer: torch.optim.Optimizer | None
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    scaler: torch.amp.GradScaler | None = None
    memory_format: torch.memory_format | None = None
    max_grad_norm: float | None = None
    scheduler: Scheduler | None = None
    weighing: Weighing | None = None
    one_pass: bool = False
    stepping: bool = False
    host_memory_bytes: int | None = None
    varies: bool = False
    compiled: bool = False
    ranks: Ranks | None = None
    accumulating: Callable[[], AbstractContextManager[Any]] = nullcontext
    together: bool = False
    exchange: Exchange | None = None
    discard: Callable[[], None] | None = None
    gathers: bool = False

    @classmethod
    def of(
        cls,
        workload: Workload,
        loss: LossRule,
        device: torch.device,
        weighing: Weighing | None = None,
        host_memory_bytes: int | None = None,
        *,
        varies: bool = False,
    ) -> "Draft":
        """Returns the draft of the user's step before any strategy is applied. Makes the optimizer."""
        return cls(
            model=workload.model,
            loss=loss,
            optimizer=workload.make_optimizer(),
            device=device,
            max_grad_norm=workload.max_grad_norm,
            weighing=weighing,
            host_memory_bytes=host_memory_bytes,
            varies=varies,
            one_pass=loss.update is not None,
        )


@dataclass(slots=True)
class TrainStep:
    """One optimizer step under a plan. Use it as `for batch in step.loader: loss = step(batch)`.

    `close()`, or leaving it as a context manager, removes the strategies from the model. Without `close()` the model
    stays modified by the plan.

    Attributes:
        plan: the plan that is applied.
        draft: the model, optimizer, loss and other settings of the step.
        loader: yields the batches of whole optimizer steps. Empty in a probe, which makes its own batches.
        phase: the current phase: transfer, forward, backward or optimizer. A probe reads it when a step fails.
        micro_batch: number of the current micro batch of the step, from 1.
        observe: callback for the start of each phase, or None.
        splitting: cuts micro batches that run out of memory; None: the error is raised.
    """

    plan: Plan
    draft: Draft
    loader: StepLoader = field(default_factory=lambda: StepLoader((), 1))
    phase: str = "prepare"
    micro_batch: int = 0
    observe: Callable[[str], None] | None = None
    splitting: Passes | None = None
    _undo: ExitStack = field(default_factory=ExitStack)

    def __repr__(self) -> str:
        """Returns the plan alone: the fields hold the whole model."""
        return f"TrainStep({self.plan})"

    @property
    def model(self) -> nn.Module:
        """The model in training."""
        return self.draft.model

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer in use. None in inference."""
        return self.draft.optimizer

    @property
    def splits(self) -> Splits:
        """The micro batches that were cut because they ran out of memory, with `on_oom="split"`."""
        return Splits() if self.splitting is None else self.splitting.splits

    def __call__(self, batch: Batch | StepBatch) -> torch.Tensor:
        """Runs one optimizer step and returns the loss of its whole batch, detached, on the device.

        In inference, runs the forward pass under `torch.inference_mode` and returns the output on the last micro batch.
        Warns once about a batch that is not from `loader`, if the plan was not proven for it. A step that fails leaves
        no gradients, unless some were set before it.

        Raises:
            UsageError: the draft is `one_pass`, but the batch has several parts.
        """
        step_batch = batch if isinstance(batch, StepBatch) else self.loader.whole(batch)
        if self.draft.optimizer is None:
            with torch.inference_mode():
                return [self._forward(part) for part in step_batch.parts][-1]
        if self.draft.one_pass and len(step_batch.parts) > 1:
            raise UsageError(
                f"found {len(step_batch.parts)} micro batches in a step that uses up its gradients in one pass; "
                "expected one. Pass one batch per step."
            )
        update, self.draft.stepping = self.draft.loss.update, True
        added_to = update is not None or _has_gradients(self.draft.optimizer)
        try:
            if update is not None:  # the user's passes and updates are one phase
                part = self._bring(step_batch.parts[0])
                with self.draft.autocast():
                    loss = update(self.draft.model, self.draft.optimizer, part)
            else:
                loss = self.backward(step_batch)
                self._update(self.draft.optimizer)
        except BaseException:
            if not added_to:  # the next step would add to what this one has left
                if self.draft.discard is not None:
                    self.draft.discard()
                self.draft.optimizer.zero_grad(set_to_none=True)
            raise
        finally:
            self.draft.stepping = False
        if self.draft.scheduler is not None:
            self.draft.scheduler.step()
        return loss

    def backward(self, batch: StepBatch) -> torch.Tensor:
        """Adds the gradients of one optimizer step to the parameters and returns the whole batch's loss, detached."""
        draft = self.draft
        weights = batch.weights if draft.weighing is None else weights_of(draft.weighing, batch.parts)
        # Where no entry of a part counts, its mean is 0 / 0.
        parts: Parts = [(part, weight) for part, weight in zip(batch.parts, weights, strict=True) if weight]
        if draft.together and draft.ranks is not None:
            parts = draft.ranks.pooled(parts)
        return (
            self.passes(parts) if self.splitting is None or not draft.stepping else self.splitting.passes(self, parts)
        )

    def passes(self, parts: Parts) -> torch.Tensor:
        """Adds the gradients of micro batches, each with its weight, and returns the sum of their losses, detached."""
        draft, total = self.draft, None
        for number, (part, weight) in enumerate(parts, 1):
            self.micro_batch = number
            with draft.accumulating() if number < len(parts) else nullcontext():
                loss = self._part(part, weight)
            if total is not None:
                total = total + loss.detach()
            else:  # the next run of a CUDA graph overwrites its outputs
                total = loss.detach().clone() if draft.compiled else loss.detach()
            del loss  # the next micro batch runs without it
        assert total is not None, "a StepBatch has at least one part"
        return total

    def _part(self, part: Batch, weight: float) -> torch.Tensor:
        """Adds the gradients of one micro batch to the parameters and returns its weighted loss."""
        draft, loss = self.draft, self._forward(part)
        if weight != 1.0:
            loss = loss * weight
        self._enter("backward")
        try:
            torch.autograd.backward(loss if draft.scaler is None else draft.scaler.scale(loss))
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            name = draft.loss.name
            raise WorkloadError(
                f"the loss from {name} was already backpropagated: if {name} calls backward() or "
                "optimizer.step() itself, remove these calls and return the loss; if it keeps a hidden state, "
                ".detach() it"
            ) from error
        return loss

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        self._enter("optimizer")
        draft, scaler = self.draft, self.draft.scaler
        if draft.max_grad_norm is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip([*draft.model.parameters()], draft.max_grad_norm)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _forward(self, part: Batch) -> torch.Tensor:
        part = self._bring(part)
        with self.draft.autocast():
            return self.draft.loss.compute(self.draft.model, part)

    def _bring(self, part: Batch) -> Batch:
        """Returns a micro batch on the device; the forward phase begins."""
        self._enter("transfer")
        device, layout = self.draft.device, self.draft.memory_format
        if layout is not None:
            formats = {4: layout}
            part = map_tensors(
                part,
                lambda t: t.to(device, non_blocking=True, memory_format=formats.get(t.dim(), torch.preserve_format)),
            )
        elif any(tensor.device != device for tensor in tensors(part)):
            part = map_tensors(part, lambda t: t.to(device, non_blocking=True))
        self._enter("forward")
        return part

    def _enter(self, phase: str) -> None:
        self.phase = phase
        if self.observe is not None:
            self.observe(phase)

    def close(self) -> None:
        """Removes the strategies from the model and optimizer. The weights and the optimizer's state stay as trained.

        Ranks that have divided them bring them together, so that all must close their steps. After an error on one rank
        alone it warns, and the model stays divided.
        """
        ranks = self.draft.ranks
        if not self.draft.gathers or ranks is None or ranks.all_close():
            self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(each.grad is not None for group in optimizer.param_groups for each in group["params"])


def clip(parameters: Sequence[torch.Tensor], max_norm: float) -> None:
    """Clips the gradients of parameters to an L2 norm. torch does not take sharded and plain ones together."""
    kinds = defaultdict[bool, list[Any]](list)
    for parameter in parameters:
        if parameter.grad is not None:
            kinds[is_traceable_wrapper_subclass(parameter.grad)].append(parameter)
    if len(kinds) < 2:
        nn.utils.clip_grad_norm_(parameters, max_norm)
        return
    norms: list[Any] = [nn.utils.get_total_norm([each.grad for each in kinds[sharded]]) for sharded in (False, True)]
    total = torch.linalg.vector_norm(torch.stack([norms[0], norms[1].full_tensor()]))
    for kind in kinds.values():
        nn.utils.clip_grads_with_norm_(kind, max_norm, total)


def static_bytes(step: TrainStep) -> int:
    """Returns the bytes of the distinct storages that stay allocated between two steps, on the step's device."""
    return storage_bytes(lasting_tensors(step.draft.model, step.draft.optimizer), step.draft.device)


def lasting_tensors(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """Yields what stays between two steps: parameters, buffers, gradients that are not sparse, and optimizer state."""
    yield from model.parameters()
    yield from model.buffers()
    yield from (p.grad for p in model.parameters() if p.grad is not None and p.grad.layout is torch.strided)
    if optimizer is not None:
        yield from state_tensors(optimizer)


def storage_bytes(found: Iterable[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes of the distinct storages of tensors, of those that are on a device of this type."""
    here = [piece for t in found if t.device.type == device.type for piece in pieces(t)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (piece.untyped_storage() for piece in here)}
    return sum(storages.values())
