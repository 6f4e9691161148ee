"""A process can answer with a known number of GPUs."""

import pytest
import torch

from autofit.devices.gpu_count import gpu_count, gpu_in_use, known_gpu_count


def test_the_known_number_is_the_answer_until_the_context_is_left() -> None:
    before = torch.cuda.is_available(), torch.cuda.device_count()
    with known_gpu_count(3):
        assert (torch.cuda.is_available(), gpu_count()) == (True, 3)
    with known_gpu_count(0):
        assert (torch.cuda.is_available(), gpu_count()) == (False, 0)
    assert (torch.cuda.is_available(), gpu_count()) == before


def test_a_gpu_is_in_use_once_torch_has_started_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert gpu_in_use()
