"""The device is chosen by name, or the best one here."""

import re

import pytest
import torch

from autofit import devices
from autofit.core.errors import UsageError
from tests.devices.fake_torch import Card, install

NO_ACCELERATOR = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has the device")


def test_members_are_found_by_their_type() -> None:
    assert [member.type for member in devices.members()] == ["cuda", "cpu"]
    assert devices.choose("cpu").type == "cpu"


@NO_ACCELERATOR
def test_without_an_accelerator_the_cpu_is_the_best() -> None:
    assert devices.choose().type == "cpu"


@NO_ACCELERATOR
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_what_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as error:
        devices.choose(name)
    assert f"no device '{name}' here; available: cpu. Leave it out" in str(error.value)


def test_an_accelerator_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert devices.choose().type == "cuda"
    assert devices.choose("cpu").type == "cpu"


def test_a_device_is_chosen_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = install(monkeypatch, Card(), Card())
    assert devices.choose("cuda:1").torch_device == torch.device("cuda", 1)
    machine.current = 1
    assert devices.choose("cuda").torch_device == torch.device("cuda", 1)
    assert devices.choose("cuda:0").torch_device == torch.device("cuda", 0)
    with pytest.raises(UsageError, match=re.escape("no device 'cuda:2' here; available: cuda:0 to cuda:1, cpu. Leave")):
        devices.choose("cuda:2")


def test_a_device_whose_driver_does_not_answer_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how torch reports a driver that is too old for it: with a warning, and False."""
    install(monkeypatch, available=False)
    assert devices.choose().type == "cpu"
    with pytest.raises(UsageError, match="no device 'cuda' here; available: cpu"):
        devices.choose("cuda")


@pytest.mark.parametrize(
    "name", ["cuda:", "cuda:-1", "cuda:01", "cuda:1.0", "cuda:²", "cuda:0:0", "CUDA", " cuda", "cuda "]
)
def test_a_name_that_torch_would_not_take_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Card(), Card())
    with pytest.raises(UsageError, match=re.escape(f"no device {name!r} here")):
        devices.choose(name)


@pytest.mark.parametrize("name", ["gpu", "", "cpu:first", "tpu:0"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"available: .*cpu"):
        devices.choose(name)


def test_the_cpu_has_no_index_because_its_tensors_have_none() -> None:
    assert devices.choose("cpu:0").torch_device == torch.zeros(1).device
