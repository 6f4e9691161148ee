"""State with a row for each sample, which a step carries to the next one: a hidden state, a queue of the batch's size.

Row i of a batch continues row i of the batch before. Micro batches, or another batch size, would feed it to others.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.core.units import format_names
from autofit.probing.survey.gate_notes import NAMED
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import Build, Gradients, State, difference
from autofit.probing.survey.module_modes import dropout_off
from autofit.workloads.counted_batches import Counted
from autofit.workloads.tree import tensors

NOTHING = GateResult(True, "no state with a row for each sample is carried from step to step")


def carried(build: Build, batch: Counted, smaller: Counted, seed: int, state: State) -> GateResult:
    """Looks for state of the model that has the size of the batch and changes the gradient of the next step.

    Args:
        build: makes a train step; its model's gradients are left as None.
        batch: a batch.
        smaller: a batch with fewer samples.
        seed: for the random numbers of the step.
        state: restores what a step changes besides gradients.
    """
    gradients = Gradients(build, state, dropout_off)
    try:
        first = gradients.of([batch], seed)
        whole = _shapes(build)
        again = gradients.of([batch], seed)
        if not difference(again.vector, first.vector) > first.most_l2:
            return NOTHING
        state.restore()
        gradients.of([smaller], seed)
        fewer = _shapes(build)
    finally:
        state.restore()
    sizes = (batch.samples, smaller.samples)
    names = [name for name, shape in whole.items() if sizes in _differing(shape, fewer.get(name, shape))]
    if not names:
        return NOTHING
    return GateResult(
        False,
        f"{format_names(names, NAMED)} has a row for each sample of a batch and is carried to the next step, so that "
        "rows would meet the state of other samples. The batch is kept",
    )


def _differing(one: torch.Size, other: torch.Size) -> list[tuple[int, int]]:
    return [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]] if len(one) == len(other) else []


def _shapes(build: Build) -> dict[str, torch.Size]:
    """Returns the shape of each tensor, except parameters, that the modules of the model hold now."""
    with build(Plan()) as step:
        return dict(_held(step.draft.model))


def _held(model: nn.Module) -> Iterator[tuple[str, torch.Size]]:
    for path, module in model.named_modules():
        plain: dict[str, Any] = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for name, value in {**plain, **module._buffers}.items():
            for number, tensor in enumerate(tensors(value) if not isinstance(value, nn.Module) else ()):
                yield f"model.{path}.{name}[{number}]".replace("..", ".").removesuffix("[0]"), tensor.shape
