"""The device is chosen by name, or the best one here."""

import pytest
import torch

from autofit import devices
from autofit.core.errors import UsageError

NO_ACCELERATOR = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")


def test_members_are_found_by_their_type() -> None:
    assert [member.type for member in devices.MEMBERS] == ["cuda", "cpu"]
    assert devices.choose("cpu").type == "cpu"


@NO_ACCELERATOR
def test_without_an_accelerator_the_cpu_is_the_best() -> None:
    assert devices.choose().type == "cpu"


@NO_ACCELERATOR
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_is_refused_where_there_is_none(name: str) -> None:
    cuda = devices.MEMBERS[0]
    assert not cuda.is_available()
    with pytest.raises(UsageError) as error:
        devices.choose(name)
    assert f"no device '{name}' here; available: cpu. Leave it out" in str(error.value)


@pytest.mark.parametrize("name", ["gpu", "", "cpu:first", "tpu:0"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"available: .*cpu"):
        devices.choose(name)


def test_the_cpu_has_no_index_because_its_tensors_have_none() -> None:
    assert devices.choose("cpu:0").torch_device == torch.zeros(1).device
