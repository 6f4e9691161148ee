"""The device that is tuned for is the model's, or the one that the user asks for."""

import pytest
import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.devices import of_model
from autofit.devices.cpu import Cpu
from autofit.devices.of_model import device_for, device_it_is_on


class Better(Cpu):
    """An accelerator that is the best here."""

    type = "cuda"
    is_host = False

    def name(self) -> str:
        return "Card 1"


def test_it_is_the_models_own_or_the_one_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def choose(name: str | None = None) -> Cpu:
        asked.append(name)
        return Cpu()

    monkeypatch.setattr(of_model, "choose", choose)
    assert device_for(nn.Linear(1, 1), None).type == "cpu"
    device_for(nn.Linear(1, 1), torch.device("cuda:1"))
    device_for(nn.Linear(1, 1, device="meta"), None)
    device_for(nn.ReLU(), None)
    assert asked == [None, "cpu", "cuda:1", None, "meta", None, "cpu"]


def test_a_model_on_the_cpu_beside_an_accelerator_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_model, "choose", lambda name=None: Better() if name is None else Cpu())
    with pytest.raises(WorkloadError, match=r'while Card 1 \(cuda\) is available.*or pass device="cpu"'):
        device_for(nn.Linear(1, 1), None)
    assert device_for(nn.Linear(1, 1), "cpu").is_host


@pytest.mark.parametrize("wrong", [[], "train.py:make_workload", None])
def test_what_is_no_module_is_refused(wrong: object) -> None:
    with pytest.raises(WorkloadError, match=r"expected a torch\.nn\.Module"):
        device_for(wrong, None)  # type: ignore[arg-type]  # what the test is about
    with pytest.raises(WorkloadError, match=r"torch\.nn\.Module and its loader"):
        device_it_is_on(wrong, None)  # type: ignore[arg-type]


def test_another_device_than_the_models_needs_a_stand_in() -> None:
    model = nn.Linear(1, 1)
    for requested in (None, "cpu"):
        found = device_it_is_on(model, requested)
        assert found is not None
        assert found.is_host
    assert device_it_is_on(model, "cuda") is None
    assert device_it_is_on(model, "H100 SXM") is None
