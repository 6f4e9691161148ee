"""StandInBench: a workload for a device that need not be present, ready to be traced. No probe and no gate runs.

A worker opens it for a described device (`chips`); the user's process opens it for the device that the model is on, or
for a described device while the model is on the host.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Self

import torch
from torch import nn

from autofit import devices
from autofit.chips import StandIn, ceilings_of
from autofit.core.account import Account
from autofit.core.briefing import Briefing, Options
from autofit.core.errors import AutofitError, UsageError, WorkloadError
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.core.work import Ceilings
from autofit.devices.base import Device, Reading
from autofit.gates.gradients import Steps
from autofit.identity import environment_of
from autofit.memory.breakdown import OUTSIDE, Part
from autofit.memory.trace import Trace
from autofit.prepare import PlanBatches
from autofit.probing.block_profile import profiled_on_copy
from autofit.probing.opening import (
    as_users_errors,
    batch_to_trace,
    check_divided,
    chosen,
    facts_of,
    place,
    training_notes,
)
from autofit.probing.survey import Survey
from autofit.strategies.base import Span
from autofit.tracing import isolation, tracing
from autofit.tracing.cuda import standin
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.fake_copy import fake_batch, fake_mode, fake_workload
from autofit.tracing.ranks import check_without_group
from autofit.tracing.static_memory import check_self_contained, find_fixed_parts
from autofit.workloads.counted_batches import Counted
from autofit.workloads.first_loss import loss_of
from autofit.workloads.lengths import sequence_length, with_length
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import TrainStep
from autofit.workloads.workload import Workload

CONTEXT_BYTES = 512 * 2**20
"""Assumed memory of a CUDA context with its libraries if it cannot be measured. Typical: 300 to 400 MB; with all
kernels loaded: 667 MB; with NCCL on an RTX 3090: 484 MiB (reference/memory_prediction.md section 4)."""
OPTIONS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables from which torch reads the allocator's options. The first one that is set counts, also if it is
empty (tried with torch 2.11)."""

RANKS_CAVEATS = (
    "memory is that of the rank that needs the most. Buffers of communication libraries such as NCCL are not in it: "
    "they show only on the devices",
    "the weights of a layout that divides them are taken as divided before they are on the devices, block by block",
)
"""What an estimate for several ranks assumes and leaves out."""


class StandInBench:
    """A workload on a device that need not be present, ready to be traced.

    One small forward pass on the host inspects the user's objects. Their state is not restored.

    With `chip`, that of a CUDA device which is absent, a stand-in is installed in the process that traces. `alone` says
    that this process only traces, so that anything a trace leaves in the user's objects is lost with it. `beat` is
    called at the start of each phase, as a sign of life.

    Attributes:
        briefing: what is known about the workload. Its techniques are not checked.

    Raises:
        WorkloadError: the device's memory cannot be accounted for.
        SpaceError: no layout can be applied to several ranks.
        UsageError: with several ranks, this process already belongs to a process group.
        AutofitError: as of `autofit.probing.local_bench.LocalBench`.
    """

    def __init__(
        self,
        workload: Workload,
        device: Device,
        options: Options,
        chip: Chip | None = None,
        alone: bool = False,
        beat: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self.workload, self._device = workload, device
        self._chip, self._alone, self._beat, self._ranks = chip, alone, beat, options.ranks
        if options.ranks > 1:
            check_without_group()
        account = device.account()
        if account is None:
            raise WorkloadError(f"memory on {device.name()} can only be measured: run autofit tune there instead.")
        with as_users_errors(devices.host()):
            place(workload, device, options.own_process)
            eval_modules = workload.set_mode()
            self._source = source_of(workload.loader, worst_case=workload.worst_case, seed=options.seed)
            self._batches = PlanBatches(self._source)
            self._loss = self._resolved()
            # The data set here may be smaller than the one to train on.
            budget = device.budget(options.memory_budget, self._source.varies)
            facts = facts_of(workload, self._source, device, options, budget, self._loss)
            facts = replace(facts, dataset_size=None, profile=self._profile)
            strategies = chosen(options.strategies, options.without)
            survey = Survey(facts, strategies, Steps(_nothing_runs), self._source)
            space = survey.run()
            if options.ranks > 1:
                check_divided(space, options.layout, options.ranks)
            # Without the refusals of strategies that leave the memory per sample as it is.
            aside = {name for each in strategies if each.same_memory for name in (each.name, *each.owns)}
            refused = tuple(each for each in space.refused if each.name.partition("=")[0] not in aside)
            self.briefing = Briefing(
                space=space.model_copy(update={"refused": refused}),
                environment=environment_of(workload, device, self._source, self._loss, facts.optimizer, present=False),
                budget=budget,
                enforced=False,
                account=account,
                ceilings=device.ceilings(),
                caveats=(
                    *training_notes(workload, self._loss, eval_modules, "estimated"),
                    *device.caveats(),
                    *(RANKS_CAVEATS if options.ranks > 1 else ()),
                    *self._source.notes,
                    *survey.caveats,
                ),
                sequence_length=sequence_length(batch_to_trace(self._source, space.baseline).batch),
            )

    @classmethod
    def of(
        cls,
        workload: Workload,
        options: Options,
        described: StandIn,
        beat: Callable[[str], None] = lambda phase: None,
        alone: bool = True,
    ) -> Self:
        """Opens a bench for the described device. What stands in for a CUDA device stays installed.

        Raises:
            UsageError: not `alone`, and processes can only be forked on Linux, which this machine does not run.
        """
        host = devices.host()
        if described.is_host:
            return cls(workload, host, options, alone=alone, beat=beat)
        if not (alone or isolation.IS_SUPPORTED):
            raise UsageError(
                f"found a model to be estimated for {described.name}; expected a factory, which runs in a process of "
                'its own: autofit.estimate("train.py:make_workload", device=...). With a model, this works on Linux.'
            )
        chip = Chip(described.capability, described.multiprocessors, described.threads)
        return cls(workload, _Absent(described), options, chip, alone=alone, beat=beat)

    def trace(self, plan: Plan, length: int | None = None) -> Trace:
        """Returns the allocations of the plan's training steps, without running them.

        `length` is the sequence length of the batches; None for the loader's.

        Raises:
            Untraceable: something in the step cannot run without data, or would run differently on the device, or the
                step fails at this length.
            SpaceError: the plan cannot be applied to this workload.
        """
        self._beat("trace")
        with as_users_errors(devices.host()):
            batch = batch_to_trace(self._batches.source(plan), plan)
            if length is not None:
                batch = Counted(with_length(batch.batch, length), batch.samples)
        threads = torch.get_num_threads()

        def work() -> Trace:
            target, ranks = self._device.torch_device if self._chip is None else standin.install(), self._ranks
            where, limit_s = (plan, batch, target, self._chip), isolation.LIMIT_S
            return tracing.trace(self.workload, self._loss, *where, limit_s, threads, ranks=ranks)

        if self._alone:
            return work()
        on_host = self._device.torch_device.type == devices.host().type
        return isolation.isolated(work, self.workload, on_host)

    def fixed_parts(self) -> tuple[Part, ...]:
        """Returns the memory that a step keeps at any batch size, as far as it is found without running one."""
        return () if self._ranks > 1 else find_fixed_parts(self.workload)

    def _profile(self, plan: Plan, blocks: Sequence[nn.Module], marked: Callable[..., bool]) -> Sequence[Span]:
        with suppress(Exception):  # the user's code may need real data; the trace will say so
            if not self._alone:
                check_self_contained(self.workload)
            return profiled_on_copy(self.workload, self._loss, plan, blocks, marked, self._small())
        return ()

    def _small(self) -> Counted:
        return Counted(self._source.typical(self._source.small_size, 1)[0], self._source.small_size)

    def _resolved(self) -> LossRule:
        """Returns how the loss is computed, if possible from a fake copy: a large model takes minutes on the host."""
        workload, host = self.workload, torch.device("cpu")
        if self._alone and workload.training and workload.update_fn is None:
            unknown = LossRule("", lambda model, batch: torch.empty(()), inferred=False, about="")
            with suppress(Exception):  # the user's code may need real data, with which any error will show
                found = self._small()
                with fake_mode():
                    part = fake_batch(found, found.samples, host)
                    copied = fake_workload(workload, unknown, part, host)
                    if copied.loss is not unknown:
                        return copied.loss
                    model, loss_fn = copied.workload.model, workload.loss_fn
                    return resolve_loss(model, part, loss_fn=loss_fn, step_fn=workload.step_fn)
        return loss_of(workload, self._source, self._device.torch_device)


class _Absent(Device):
    """A CUDA device that is not present: `Device` answered from a description."""

    type = "cuda"

    def __init__(self, described: StandIn) -> None:
        super().__init__()
        self._described = described

    @property
    def torch_device(self) -> torch.device:
        """The host, where the user's model is."""
        return devices.host().torch_device

    @classmethod
    def is_available(cls) -> bool:
        """Returns False."""
        return False

    def name(self) -> str:
        """Returns the name of the device."""
        return self._described.name

    def capacity_bytes(self) -> int:
        """Returns the memory of the device. If it is unknown, returns 2**63, so that any budget is possible."""
        return 2**63 if self._described.capacity_bytes is None else self._described.capacity_bytes

    def available_bytes(self) -> int:
        """Returns the whole memory: no other process is on the device."""
        return self.capacity_bytes()

    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of this generation of chips."""
        return devices.cuda_capabilities(self._described.capability)

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Raises, since nothing can run on the device."""
        raise AutofitError(f"{self.name()} is not present; expected that nothing is metered on it.")
        yield Reading()

    def caveats(self) -> tuple[str, ...]:
        """Returns what an estimate for an absent device leaves out."""
        unnamed = self._described.capacity_bytes is None
        major, minor = self._described.capability
        return (
            f"{format_bytes(CONTEXT_BYTES)} are assumed for {OUTSIDE} (reported: 300 to 670 MB); autofit tune measures "
            "it on the device",
            *((f"no device was named: kernels of compute capability {major}.{minor} are assumed",) if unnamed else ()),
            "peaks are traced, not measured: temporary memory of libraries such as cuDNN shows only on the device",
        )

    def ceilings(self) -> Ceilings | None:
        """Returns the published peak rates of the device."""
        return ceilings_of(self._described.name)

    def account(self) -> Account:
        """Returns the caching allocator with the options of this process, and a typical context."""
        options = next((os.environ[name] for name in OPTIONS if name in os.environ), "")
        return Account(allocator="caching", settings=options, outside_bytes=CONTEXT_BYTES)


def _nothing_runs(plan: Plan) -> TrainStep:
    raise AutofitError(f"a step of {plan} was requested; expected that an estimate runs no steps.")
