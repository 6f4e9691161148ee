"""The host's ceilings are rates that a real product and a real copy do not pass by much."""

from time import perf_counter

import pytest
import torch

from autofit.devices import host_speed
from autofit.devices.cpu import Cpu


def test_a_real_product_is_not_much_faster_than_its_ceiling() -> None:
    factor, ratios = torch.ones(384, 384), []
    for _ in range(3):  # a machine that is busy while the ceiling is measured makes it too low
        found, times = host_speed.measured("fp32"), []
        for _ in range(8):
            began = perf_counter()
            torch.mm(factor, factor)
            times.append(perf_counter() - began)
        ratios.append(2 * 384**3 / sorted(times)[4] / found.flops_per_s["fp32"])
    assert min(ratios) < 4
    assert 1e8 < found.bytes_per_s < 1e13
    assert 1e-8 < found.operator_s < 1e-3
    assert not found.ahead


def test_the_processor_has_a_ceiling_for_each_precision_that_it_computes_in() -> None:
    device = Cpu()
    expected = {"fp32", *(device.capabilities() & {"bf16", "fp16"})}
    assert device.ceilings().flops_per_s.keys() == expected


@pytest.mark.parametrize(("times_slower", "offered"), [(1.0, True), (3.9, True), (4.1, False), (40.0, False)])
def test_fp16_is_offered_only_where_a_convolution_is_trained_in_it(
    monkeypatch: pytest.MonkeyPatch, times_slower: float, offered: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_fp16": True, "avx512_bf16": True})
    monkeypatch.setattr(host_speed, "_training_s", lambda dtype: times_slower if dtype is torch.float16 else 1.0)
    host_speed.trains_in.cache_clear()
    try:
        assert ("fp16" in Cpu().capabilities()) is offered
        assert "bf16" in Cpu().capabilities()
    finally:
        host_speed.trains_in.cache_clear()


def test_whether_a_precision_is_trained_in_is_found_by_training() -> None:
    host_speed.trains_in.cache_clear()
    before = torch.random.get_rng_state()
    assert host_speed.trains_in("fp32")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.is_autocast_enabled("cpu")
