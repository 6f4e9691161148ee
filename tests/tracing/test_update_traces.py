"""A step that the user's function does is traced with the peak that it really has."""

import gc
from typing import Any

import pytest
import torch

from autofit.core.plan import Plan
from autofit.devices.cpu import Cpu
from autofit.memory.trace import Kind
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing.static_memory import find_fixed_parts
from autofit.tracing.tracing import trace
from autofit.workloads.step import Draft, static_bytes
from autofit.workloads.update import rule_of_update
from tests.tracing.test_tracing import peaks
from tests.workloads import gans

CPU, RULE = torch.device("cpu"), rule_of_update(gans.update)


def batch(size: int) -> tuple[torch.Tensor]:
    return (torch.randn(size, gans.WIDTH),)


@pytest.mark.parametrize("values", [{}, {"optimizer_implementation": "foreach"}, {"checkpointed_blocks": 4}])
@pytest.mark.parametrize("size", [4, 64])
def test_the_trace_has_the_peak_of_the_real_steps(values: dict[str, Any], size: int) -> None:
    plan = Plan(values={"micro_batch_size": size, **values})
    found = trace(gans.workload(), RULE, plan, batch(size), CPU)
    draft = Draft.of(gans.workload(), RULE, CPU)
    gc.collect()  # releases while the meter runs would count
    with prepare(plan, draft, members()) as step, Cpu().meter(lambda: static_bytes(step)) as reading:
        for _ in range(2):
            step(batch(size))
    assert reading.memory is not None
    # Each checkpointed call keeps a random state, which a trace does not see. Two blocks run once, and two three times.
    saved = 8 * torch.get_rng_state().nbytes if "checkpointed_blocks" in values else 16
    assert reading.memory.allocated_bytes - saved <= max(peaks(found).values()) <= reading.memory.allocated_bytes


def test_the_gradients_that_a_step_leaves_are_known_as_such() -> None:
    made = gans.workload()
    found = trace(made, RULE, Plan(values={"micro_batch_size": 4}), batch(4), CPU)
    alive = found.alive(len(found.events))
    sizes = [found.tensors.sizes[handle] for handle in alive if found.tensors.kinds[handle] is Kind.GRADIENT]
    assert sorted(sizes) == sorted(p.nbytes for p in made.model.parameters())


def test_the_memory_of_all_models_and_optimizers_is_found_without_a_step() -> None:
    made = gans.workload()
    parts = {part.name: part.size_bytes for part in find_fixed_parts(made)}
    parameters = sum(p.nbytes for p in made.model.parameters())
    assert parts[Kind.PARAMETER.value] == parts[Kind.GRADIENT.value] == parameters
    assert parts[Kind.OPTIMIZER_STATE.value] == 2 * parameters + 4 * len(list(made.model.parameters()))
