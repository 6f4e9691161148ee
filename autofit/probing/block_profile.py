"""Block profile: what the blocks of a model keep for the backward pass and compute, seen in one small step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.gradients import Gradients, Steps
from autofit.gates.modes import dropout_off
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Span
from autofit.torch_internals import TorchDispatchMode, pytree, storage_id
from autofit.tracing.fake_copy import fake_batch, fake_mode, fake_workload
from autofit.tracing.operation_count import Tally
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from autofit.workloads.workload import Workload

Marked = Callable[..., bool]


def profiled(steps: Steps, plan: Plan, blocks: Sequence[nn.Module], marked: Marked, batch: Counted) -> Sequence[Span]:
    """Returns the parts of one forward pass in order, per sample of `batch`.

    Dropout is off. Everything that the step changes is restored.
    """

    def built(_: Plan) -> TrainStep:
        return steps.build(plan)

    recorder = _SpanRecorder(blocks, marked)
    with Gradients(replace(steps, build=built), dropout_off) as gradients, recorder.recording():
        gradients.rehearse(batch)
    return tuple(part.span(batch.samples) for part in recorder.parts)


def profiled_on_copy(
    workload: Workload, loss: LossRule, plan: Plan, blocks: Sequence[nn.Module], marked: Marked, batch: Counted
) -> Sequence[Span]:
    """Returns what `profiled` returns, from a fake copy of the workload on the host: nothing is computed.

    Raises:
        Exception: the step cannot run without data.
    """
    host = torch.device("cpu")
    names = {module: name for name, module in workload.model.named_modules()}
    with fake_mode(), torch.random.fork_rng(devices=[]):
        part = fake_batch(batch, batch.samples, host)
        copied = fake_workload(workload, loss, part, host)
        copied.workload.set_mode()
        model = copied.workload.model
        recorder = _SpanRecorder([model.get_submodule(names[block]) for block in blocks], marked)
        draft = Draft.of(copied.workload, copied.loss, host)
        with prepare(plan, draft, members()) as step, dropout_off(model), recorder.recording():
            step.backward(StepBatch.alike([part]))
    return tuple(part.span(batch.samples) for part in recorder.parts)


@dataclass(slots=True)
class _SpanDraft:
    """A part of the forward pass that is still being recorded."""

    block: int | None = None
    saved_bytes: int = 0
    input_bytes: int = 0
    marked_bytes: int = 0
    tally: Tally = field(default_factory=Tally)
    marked: Tally = field(default_factory=Tally)

    def span(self, samples: int) -> Span:
        work = self.tally.work()
        return Span(
            block=self.block,
            saved_bytes=self.saved_bytes // samples,
            input_bytes=self.input_bytes // samples,
            flops=sum(work.flops.values()) // samples,
            traffic_bytes=work.traffic_bytes // samples,
            operators=work.operators,
            marked_bytes=self.marked_bytes // samples,
            marked_flops=sum(self.marked.work().flops.values()) // samples,
        )


class _SpanRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Records the parts of a forward pass by hooks of the blocks, of saved tensors and of operators."""

    def __init__(self, blocks: Sequence[nn.Module], marked: Marked) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.blocks, self.marked = blocks, marked
        self.parts = [_SpanDraft()]
        self._weights = {_address(one) for block in blocks for one in (*block.parameters(), *block.buffers())}
        self._seen = set(self._weights)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records until the context is left; then no hook remains."""
        with ExitStack() as undo:
            for number, block in enumerate(self.blocks):
                begin = block.register_forward_pre_hook(partial(self._begin, number), prepend=True, with_kwargs=True)
                undo.callback(begin.remove)
                undo.callback(block.register_forward_hook(self._end, always_call=True).remove)
            undo.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor))
            undo.enter_context(self)
            yield

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, and counts it if a block ran it."""
        kwargs, part = kwargs or {}, self.parts[-1]
        out = func(*args, **kwargs)
        if part.block is not None:
            part.tally.add(func, args, kwargs, out)
            if self.marked(func, args, kwargs):
                part.marked.add(func, args, kwargs, out)
                part.marked_bytes += sum(one.untyped_storage().nbytes() for one in _tensors(out))
        return out

    def _begin(self, number: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        inputs = {_address(one): one for one in _tensors((args, kwargs)) if _address(one) not in self._seen}
        input_bytes = sum(one.untyped_storage().nbytes() for one in inputs.values())
        # Weights are read once per batch. In the small batch of a profile they would outweigh everything else.
        tally = Tally(lambda tensor: _address(tensor) in self._weights)
        self.parts.append(_SpanDraft(number, input_bytes=input_bytes, tally=tally))

    def _end(self, *_: Any) -> None:
        self.parts.append(_SpanDraft())

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        for one in _tensors(tensor):
            if not isinstance(one, nn.Parameter) and _address(one) not in self._seen:
                self._seen.add(_address(one))
                self.parts[-1].saved_bytes += one.untyped_storage().nbytes()
        return tensor


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(value)
    return [one for one in leaves if isinstance(one, torch.Tensor) and one.layout is torch.strided]


def _address(tensor: torch.Tensor) -> int:
    return storage_id(tensor.untyped_storage()) if tensor.layout is torch.strided else id(tensor)
