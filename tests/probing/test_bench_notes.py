"""The notes on a workload before any plan is compared."""

from dataclasses import replace

import pytest
import torch

from autofit.probing.bench_notes import notes_on
from autofit.workloads.batches import BatchSource
from autofit.workloads.first_loss import loss_of
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import CPU


def found(workload: Workload, *, kept: tuple[str, ...] = (), eval_modules: tuple[str, ...] = ()) -> list[str]:
    source = BatchSource.of(workload.loader)
    loss = loss_of(workload, source, torch.device("cpu"))
    return list(notes_on(workload, CPU(), loss, eval_modules, source, kept))


@pytest.fixture
def workload() -> Workload:
    return Workload(targets.mlp(), targets.vectors())


def test_what_autofit_chose_itself_is_named(workload: Workload) -> None:
    text = " ".join(found(workload))
    assert "the loss was inferred" in text
    assert "no optimizer was given: measured with torch.optim.AdamW" in text
    given = replace(workload, loss_fn=torch.nn.functional.cross_entropy, optimizer=torch.optim.SGD)
    assert "inferred" not in " ".join(found(given))
    assert "no optimizer" not in " ".join(found(given))


def test_modules_in_evaluation_mode_and_what_cannot_be_put_back_are_named(workload: Workload) -> None:
    notes = found(workload, kept=("an open file",), eval_modules=("frozen",))
    assert "an open file" in notes
    assert any("frozen in evaluation mode" in note for note in notes)
