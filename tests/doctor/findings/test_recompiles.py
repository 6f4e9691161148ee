"""Compilations in the middle of a training, with a back end that compiles in no time."""

import random
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.doctor.diagnosis import Diagnosis, Finding
from autofit.doctor.findings import chosen
from autofit.probing.compilation import FIRST_STEPS, MOST_AGAIN, recompilations
from tests.doctor.cases import of

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("compiler")]


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    out: torch.Tensor = model(batch[0] if isinstance(batch, list) else batch).square().mean()
    return out


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(samples, batch_first=True)


def of_lengths(*lengths: int) -> DataLoader[Any]:
    texts = [torch.randint(1, 50, (length,)) for length in lengths]
    return DataLoader(texts, batch_size=4, collate_fn=padded, shuffle=True)  # type: ignore[arg-type]


def rows(count: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(count, 8)), batch_size=4)


class Counting(nn.Module):
    """Reads a number that it changes in each step."""

    def __init__(self, holds: Any) -> None:
        super().__init__()
        self.layer, self.steps = nn.Linear(8, 8), holds

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps = self.steps + 1
        out: torch.Tensor = self.layer(data) * self.steps
        return out


def diagnosed(model: nn.Module, loader: DataLoader[Any], *, dynamic: bool | None, compiled: bool = True) -> Diagnosis:
    net = nn.Sequential(model)  # torch.compile does not enter modules of torch itself that are compiled in place
    trained: Any = torch.compile(net, backend="eager", dynamic=dynamic) if compiled else net
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autofit.doctor.session.members", lambda: chosen(["recompiles"]))
        return autofit.diagnose(trained, loader, step_fn=loss)


def shown(found: Diagnosis) -> list[Finding]:
    assert not found.unchecked
    return [each for each in of(found, "recompiles") if not each.minor]


def test_a_new_compilation_for_each_length_is_found_with_its_cause_and_not_where_sizes_may_vary() -> None:
    lengths = random.Random(0).sample(range(5, 200), 64)
    (found,) = shown(diagnosed(nn.Embedding(50, 8), of_lengths(*lengths), dynamic=False))
    assert found.what.startswith(f"{MOST_AGAIN} of ")
    assert "size mismatch at index 1" in found.what
    assert " longer, because" in found.what
    assert not shown(diagnosed(nn.Embedding(50, 8), of_lengths(*lengths), dynamic=True))


def test_a_number_that_changes_in_each_step_is_found_and_a_tensor_is_not() -> None:
    (found,) = shown(diagnosed(Counting(0), rows(64), dynamic=False))
    assert re.search(r"steps == \d+ # self\.steps = self\.steps \+ 1 #", found.what)
    assert "HINT" not in found.what
    assert " longer, because" not in found.what  # each step compiles, so that none can be compared with
    assert not shown(diagnosed(Counting(torch.zeros(())), rows(64), dynamic=False))


def test_one_compilation_for_the_incomplete_last_batch_is_minor() -> None:
    (found,) = of(diagnosed(nn.Linear(8, 8), rows(67), dynamic=False), "recompiles")
    assert found.minor
    assert "expected 4, actual 3" in found.what
    assert of(diagnosed(nn.Linear(8, 8), rows(64), dynamic=False), "recompiles") == []


def test_a_model_that_is_not_compiled_is_not_run() -> None:
    (unchecked,) = diagnosed(nn.Linear(8, 8), rows(64), dynamic=None, compiled=False).unchecked
    assert unchecked.reason == "the model is not compiled"


def test_a_compiled_step_function_counts_as_compiled() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autofit.doctor.session.members", lambda: chosen(["recompiles"]))
        compiled = torch.compile(loss, backend="eager", dynamic=False)
        assert not autofit.diagnose(nn.Linear(8, 8), rows(64), step_fn=compiled).unchecked


def test_steps_that_fail_on_other_batches_are_a_reason() -> None:
    class Picky(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if ids.shape[1] < 9:
                raise ValueError("too short")
            return super().forward(ids)

    (unchecked,) = diagnosed(Picky(50, 8), of_lengths(*(9, *(5,) * 60)), dynamic=True).unchecked
    assert "ValueError: too short" in unchecked.reason


def test_steps_that_compile_nothing_are_told_after_the_first_ones() -> None:
    ran = list[int]()

    def step() -> float:
        ran.append(1)
        return 0.0

    assert recompilations([step] * 9) == "torch.compile compiles nothing in a step"
    assert len(ran) == FIRST_STEPS
