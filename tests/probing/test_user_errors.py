"""What fails while a bench is opened, and whose error it is."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.errors import (
    DevicePoisoned,
    NothingFits,
    RestoreError,
    UserCodeError,
)
from autofit.core.outcome import CONTRACT, Status
from autofit.core.trial import Purpose
from autofit.guard.tensor_state import StorageBytes
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.benches import bench_of


def test_an_error_of_the_users_while_opening_is_shown_as_theirs() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("found 7 channels")

    with pytest.raises(UserCodeError) as error:
        bench_of(Workload(Broken(8, 4), targets.vectors()))
    assert "your code failed before the first probe: ValueError: found 7 channels" in str(error.value)
    assert "in forward" in error.value.traceback_text
    assert "/autofit/" not in error.value.traceback_text
    assert isinstance(error.value.__cause__, ValueError)


def test_an_error_of_the_data_while_opening_is_shown_as_theirs() -> None:
    class Rows(TensorDataset):
        def __getitem__(self, at: int) -> Any:
            raise KeyError("label")

    with pytest.raises(UserCodeError, match="KeyError"):
        bench_of(Workload(targets.mlp(), DataLoader(Rows(torch.zeros(8, 8)), batch_size=4)))


def test_two_samples_that_do_not_fit_are_no_error_of_the_users() -> None:
    class Huge(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 900.00 GiB.")

    with pytest.raises(NothingFits, match="not even two samples fit"):
        bench_of(Workload(Huge(8, 4), targets.vectors()))


POISON = "CUDA error: an illegal memory access was encountered"


def test_a_device_that_is_poisoned_when_opening_is_no_error_of_the_users() -> None:
    class Poisoned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(POISON)

    with pytest.raises(DevicePoisoned, match="answers every call with an error") as error:
        bench_of(Workload(Poisoned(8, 4), targets.vectors()))
    assert isinstance(error.value.__cause__, RuntimeError)


def test_what_a_poisoned_device_keeps_is_said_beside_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be written, nor read to verify; the error that tells of the poison is the one to see."""
    workload = targets.make_mlp()
    error = DevicePoisoned("no answer")
    bench = bench_of(workload).__enter__()
    vars(workload.model)["note"] = "set by a step"
    monkeypatch.setattr(StorageBytes, "restore", unwritable)
    monkeypatch.setattr(StorageBytes, "differences", unwritable)
    bench.__exit__(DevicePoisoned, error, None)
    assert "model.0.weight" in error.__notes__[0]
    assert not hasattr(workload.model, "note")


def unwritable(*_: object) -> None:
    raise RuntimeError(POISON)


@pytest.mark.fault("F11")
def test_a_device_that_is_poisoned_while_a_run_is_undone_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(targets.make_mlp()) as bench:
        with monkeypatch.context() as patched:
            patched.setattr(StorageBytes, "restore", unwritable)
            outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    assert outcome.status is Status.POISONED
    assert "illegal memory access" in outcome.reason


@pytest.mark.fault("F11")
def test_a_device_that_is_poisoned_when_the_bench_is_left_is_named_with_what_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workload = targets.make_mlp()
    bench = bench_of(workload).__enter__()
    vars(workload.model)["note"] = "set by a step"
    monkeypatch.setattr(StorageBytes, "differences", unwritable)
    monkeypatch.setattr(StorageBytes, "untouched", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(DevicePoisoned, match="answers every call with an error") as error:
        bench.__exit__(None, None, None)
    assert "model.0.weight" in error.value.__notes__[0]
    assert isinstance(error.value.__cause__, RestoreError)
    assert not hasattr(workload.model, "note")


def test_an_error_while_the_bench_is_left_is_no_poison_if_the_device_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no")

    bench = bench_of(targets.make_mlp()).__enter__()
    monkeypatch.setattr(StorageBytes, "restore", broken)
    with pytest.raises(RestoreError, match=r"model\.0\.weight"):
        bench.__exit__(None, None, None)


def test_a_step_function_that_returns_no_loss_is_marked_as_such() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return {"loss": model(batch[0]).mean()}

    workload = Workload(targets.mlp(), targets.vectors(), step_fn=step)
    with bench_of(workload) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert (outcome.status, outcome.phase) == (Status.USER_ERROR, CONTRACT)
    assert "step_fn returned a dict" in outcome.reason
