"""One operator between a cheap product and a mean: the peaks of its step on a device, and those of its trace."""

import gc
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.memory.replay import replay
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing.cuda import standin
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.tracing import trace
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.tree import tensors
from autofit.workloads.workload import Workload
from scripts.bench.memory.operators.parts import Case

PRECISIONS = ("fp32", "bf16")
STEPS = 3
INNER = 8
"""Width of the input of the product."""

Peaks = tuple[int, int]
"""Peaks of allocated and reserved bytes."""


class Between(nn.Module):
    """A product, the operator, and the mean of its result."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.product = nn.Linear(INNER, case.shape[-1], bias=False)
        self.operator = case.make()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [out for out in tensors(self.operator(self.product(x))) if out.is_floating_point()]
        return sum((out.mean() for out in found[1:]), found[0].mean())


def mean(out: torch.Tensor, batch: Any) -> torch.Tensor:
    """Returns the output of `Between` as the loss."""
    return out


@dataclass(frozen=True)
class Subject:
    """A case in one precision that can be run or traced."""

    workload: Workload
    rule: LossRule
    plan: Plan
    batch: list[torch.Tensor]
    device: torch.device

    @classmethod
    def of(cls, case: Case, precision: str, device: torch.device) -> "Subject":
        """Returns a case whose model is on `device`, or on the host for a stand-in."""
        torch.manual_seed(0)
        model = Between(case)
        model.to("cpu" if device.type == standin.NAME else device)
        batch = [torch.zeros(*case.shape[:-1], INNER)]

        def step(model: nn.Module, batch: Any) -> torch.Tensor:
            loss: torch.Tensor = model(batch[0])
            return loss

        optimizer = _sgd
        workload = Workload(model, [batch], step_fn=step, optimizer=optimizer)
        rule = resolve_loss(model, batch, step_fn=step)
        plan = Plan(values={"micro_batch_size": case.shape[0], "precision": precision})
        return cls(workload, rule, plan, batch, device)

    def run(self) -> Peaks:
        """Returns the peaks of real steps from an empty cache."""
        module, model = torch.get_device_module(self.device), self.workload.model.cpu()
        clear(module)
        model.to(self.device)  # from an empty cache, as in a fresh process
        module.reset_peak_memory_stats()
        draft = Draft(self.workload.model, self.rule, self.workload.make_optimizer(), self.device)
        with prepare(self.plan, draft, members()) as step:
            for _ in range(STEPS):
                step(StepBatch.of([self.batch]))
        return module.max_memory_allocated(), module.max_memory_reserved()

    def trace(self, chip: Chip | None) -> Peaks:
        """Returns the peaks of a trace.

        Raises:
            Untraceable: the step cannot be traced.
        """
        found = trace(self.workload, self.rule, self.plan, self.batch, self.device, chip)
        peak = replay(found).peak
        return peak.allocated_bytes, peak.reserved_bytes


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, foreach=False)


def clear(module: Any) -> None:
    """Releases all cached memory, including the workspaces of cuBLAS."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    module.empty_cache()
