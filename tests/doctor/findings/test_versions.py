"""Versions that do not fit, and defects, of which only those that the training meets are found."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.devices.base import Misfit
from autofit.devices.cpu import Cpu
from autofit.devices.cuda import Cuda
from autofit.doctor.findings.versions import DEFECTS, Versions
from autofit.doctor.observation import Observation
from tests.doctor.cases import Case, held_outputs, observed

BF16, F32 = torch.bfloat16, torch.float32


class Accelerator(Cpu):
    """A device with a version of cuDNN and perhaps something that does not fit."""

    is_host = False

    def __init__(self, cudnn: str = "", found: Misfit | None = None) -> None:
        super().__init__()
        self.cudnn, self.found = cudnn, found

    def versions(self) -> dict[str, str]:
        return {"cudnn": self.cudnn} if self.cudnn else {}

    def misfit(self) -> Misfit | None:
        return self.found


def convolving(dtype: torch.dtype = BF16, kernel: int = 3, dims: int = 3, *, last: bool = False) -> Case:
    kind: type[nn.Module] = nn.Conv3d if dims == 3 else nn.Conv2d
    model: Any = kind(2, 2, kernel, padding=kernel // 2)
    if last:
        model.to(memory_format=torch.channels_last_3d)
    data = torch.randn(1, 2, *(4,) * dims)

    def step() -> None:
        with torch.autocast("cpu", dtype=BF16, enabled=dtype is BF16):
            model(data).float().mean().backward()
        model.zero_grad()

    return Case(model, step)


def seen(case: Case, device: Cpu) -> Observation:
    found = observed(case)
    found.device = device
    return found


def test_convolutions_in_three_dimensions_without_cudnn_are_found_with_their_line() -> None:
    (found,) = Versions().find(seen(convolving(), Accelerator("91002")))
    assert "without the cuDNN" in found.what
    assert found.places[0].line.rpartition("/")[2].startswith("test_versions.py:")
    assert "issues/166643" in found.evidence[0]


@pytest.mark.parametrize(
    ("case", "cudnn"),
    [
        (convolving(), "91501"),
        (convolving(), "90501"),
        (convolving(), ""),
        (convolving(F32), "91002"),
        (convolving(kernel=1), "91002"),
        (convolving(dims=2), "91002"),
        (convolving(last=True), "91002"),
        (held_outputs(True), "91002"),
    ],
    ids=["fixed", "before", "no cuDNN", "float32", "one element", "two dimensions", "channels last", "no convolution"],
)
def test_a_training_that_does_not_meet_the_defect_is_left_alone(case: Case, cudnn: str) -> None:
    assert list(Versions().find(seen(case, Accelerator(cudnn)))) == []


def test_what_does_not_fit_on_the_device_is_found() -> None:
    found = Misfit("this build of torch has no kernels for it", "install another")
    (finding,) = Versions().find(seen(held_outputs(True), Accelerator(found=found)))
    assert (finding.what, finding.remedy, finding.size) == (found.what, found.remedy, None)


@pytest.mark.parametrize(("available", "count"), [(False, 1), (True, 0)])
def test_on_a_host_the_accelerator_that_cannot_be_used_is_found(
    monkeypatch: pytest.MonkeyPatch, available: bool, count: int
) -> None:
    found = Misfit("the driver is too old", "update it")
    monkeypatch.setattr(Cuda, "misfit", lambda self: found)
    monkeypatch.setattr(Cuda, "is_available", classmethod(lambda cls: available))
    assert len(list(Versions().find(seen(held_outputs(True), Cpu())))) == count


def test_a_plain_training_on_this_machine_has_none() -> None:
    assert observed(held_outputs(True)).device.is_host
    assert isinstance(devices.host(), type(observed(held_outputs(True)).device))
    assert list(Versions().find(observed(held_outputs(True)))) == []


def test_each_defect_has_a_source() -> None:
    assert all(each.source.startswith("https://github.com/pytorch/pytorch/issues/") for each in DEFECTS)
