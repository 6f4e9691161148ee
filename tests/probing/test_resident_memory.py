"""The budget of evaluation is that of the training, less what only the training keeps in memory."""

import pytest
import torch

from autofit.core.briefing import Options
from autofit.core.errors import NothingFits
from autofit.devices.cpu import Cpu
from autofit.probing.opening import budget_of
from autofit.workloads.workload import Workload
from tests.probing import targets

MODEL_BYTES = 4 * sum(p.numel() for p in targets.mlp().parameters())
BUDGET = 2**20


class Counting(Cpu):
    """A device whose readings contain every live tensor, as those of an accelerator do."""

    def live_bytes(self) -> int:
        return 0


def workload(**changes: object) -> Workload:
    found = targets.make_mlp(eval_loader=targets.vectors(), **changes).evaluation
    assert found is not None
    return found


def options(resident_bytes: int) -> Options:
    return Options(memory_budget=BUDGET, resident_bytes=resident_bytes)


def test_a_training_has_the_whole_budget() -> None:
    assert budget_of(targets.make_mlp(), Cpu(), options(0), varies=False).memory_note == "1 MiB as requested"


def test_the_state_of_the_optimizer_is_taken_off() -> None:
    found = budget_of(workload(), Cpu(), options(3 * MODEL_BYTES), varies=False)
    assert found.memory_bytes == BUDGET - 2 * MODEL_BYTES
    assert found.memory_note.startswith("1 MiB of the training - ")
    assert "that it keeps beside the model" in found.memory_note


@pytest.mark.parametrize(("device", "held"), [(Cpu(), MODEL_BYTES), (Counting(), 2 * MODEL_BYTES)])
def test_state_that_the_readings_contain_already_is_not_taken_off_twice(device: Cpu, held: int) -> None:
    training = targets.make_mlp()
    optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1, momentum=0.9)
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    evaluation = Workload(training.model, training.loader, optimizer=optimizer, eval_loader=training.loader).evaluation
    assert evaluation is not None
    found = budget_of(evaluation, device, options(2 * MODEL_BYTES), varies=False)
    assert found.memory_bytes == BUDGET - (2 * MODEL_BYTES - held)


def test_a_training_that_keeps_everything_leaves_nothing() -> None:
    with pytest.raises(NothingFits, match=r"nothing is left of the budget for evaluation: 1 MiB of the training - "):
        budget_of(workload(), Cpu(), options(BUDGET + MODEL_BYTES), varies=False)
