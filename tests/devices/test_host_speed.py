"""The host's ceilings are rates that a real product and a real copy do not pass by much."""

from time import perf_counter

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
    expected = {"fp32", *(device.capabilities() & {"bf16"})}
    assert device.ceilings().flops_per_s.keys() == expected
