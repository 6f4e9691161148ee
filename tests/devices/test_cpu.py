"""The CPU's readings are exact, repeat to the byte, and its limit is a real one."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.devices.cpu import BOOKKEEPING_BYTES, Cpu
from autofit.probing.remote.bench import HOST_LIMIT_ENVIRONMENT
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep, static_bytes

CPU = devices.choose("cpu")
KIB = 2**10


def floats(count_bytes: int) -> torch.Tensor:
    return torch.empty(count_bytes // 4)


def metered(run: Callable[[], object], static: int = 0) -> Memory:
    with CPU.meter(lambda: static) as reading:
        run()
    assert reading.memory is not None
    return reading.memory


def test_the_peak_is_the_sum_of_what_is_live_at_once() -> None:
    def run() -> None:
        first = floats(100 * KIB)
        second = floats(200 * KIB)
        del first
        third = floats(50 * KIB)  # 250 live
        del second
        fourth = floats(120 * KIB)  # 170 live
        del third, fourth
        floats(10 * KIB)

    memory = metered(run)
    assert memory.allocated_bytes == memory.judged_bytes == 300 * KIB
    assert "allocation record" in memory.judged_by


def test_what_lives_on_from_before_is_added() -> None:
    kept = [floats(300 * KIB)]
    assert metered(lambda: floats(200 * KIB), static=300 * KIB).allocated_bytes == 500 * KIB

    def replace() -> None:
        kept[0] = floats(300 * KIB)
        floats(100 * KIB)

    # The release of what was there before need not be in the record: an upper bound, never less than the truth of 600.
    assert metered(replace, static=300 * KIB).allocated_bytes in (600 * KIB, 700 * KIB)


def test_static_bytes_are_those_at_the_end() -> None:
    sizes = iter([100, 700])
    with CPU.meter(lambda: next(sizes)) as reading:
        pass
    assert reading.memory is not None
    assert reading.memory.static_bytes == 700
    assert reading.memory.allocated_bytes == 100


def adam_step(width: int = 64, depth: int = 4) -> TrainStep:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))
    loss = LossRule("loss", lambda model, batch: model(batch).square().mean(), inferred=False, about="")
    return TrainStep(Plan(), Draft(model, loss, torch.optim.Adam(model.parameters()), torch.device("cpu")))


def peak_of(step: TrainStep, batch: torch.Tensor, steps: int = 1) -> int:
    with CPU.meter(lambda: static_bytes(step)) as reading:
        for _ in range(steps):
            step(batch)
    assert reading.memory is not None
    return reading.memory.allocated_bytes


def test_the_peak_of_a_step_repeats_to_the_byte() -> None:
    batch = torch.randn(32, 64)
    fresh = {peak_of(adam_step(), batch, steps=3) for _ in range(4)}
    assert len(fresh) == 1
    warm = adam_step()
    warm(batch)
    assert len({peak_of(warm, batch) for _ in range(3)}) == 1


@pytest.mark.fault("F04")
def test_the_second_step_of_adam_needs_more_than_the_first_and_the_third_no_more() -> None:
    step, batch = adam_step(), torch.randn(256, 64)
    first, second, third = (peak_of(step, batch) for _ in range(3))
    parameters = sum(p.nbytes for p in step.model.parameters())
    # The two moments appear at the end of the first step, when its activations are gone.
    assert second > first
    assert second - first <= 2 * parameters + 64
    assert third == second
    assert static_bytes(step) == 3 * parameters + 4 * len(list(step.model.parameters()))


def test_the_hand_computed_peak_of_a_forward_and_backward_pass() -> None:
    layer = nn.Linear(64, 32, bias=False)
    batch = torch.randn(16, 64)

    def run() -> None:
        output = layer(batch)  # 16 x 32
        output.backward(torch.ones(16, 32))  # the gradient of the output, then that of the weight, 32 x 64

    weight, output = 32 * 64 * 4, 16 * 32 * 4
    assert metered(run, static=weight).allocated_bytes == weight + output + output + weight


def test_the_record_is_switched_off_after_an_exception() -> None:
    with pytest.raises(KeyError), CPU.meter(lambda: 0):
        raise KeyError
    assert metered(lambda: floats(KIB)).allocated_bytes == KIB


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the resident peak is Linux's")
def test_the_footprint_is_the_resident_peak_of_the_stretch() -> None:
    size = 64 * 2**20
    quiet = metered(lambda: floats(KIB)).footprint_bytes
    loud = metered(lambda: floats(size).fill_(1.0)).footprint_bytes
    after = metered(lambda: floats(KIB)).footprint_bytes
    assert quiet is not None
    assert loud is not None
    assert after is not None
    assert loud - quiet >= 0.9 * size
    assert loud - after >= 0.9 * size  # reset between stretches


def test_capacity_availability_and_name_are_plausible() -> None:
    assert 0 < CPU.available_bytes() <= CPU.capacity_bytes()
    assert CPU.name()
    assert CPU.is_host


LIMITED = """
import json, sys, resource
import torch
from torch import nn
from autofit import devices
from autofit.workloads.step import static_bytes
torch.set_num_threads(1)
cpu = devices.choose("cpu")
budget = int(sys.argv[1])
torch.ones(8).sum()
before = resource.getrlimit(resource.RLIMIT_DATA)
class Holder:
    model, optimizer = nn.Linear(1024, 1024), None
    draft = None
Holder.draft = type("Draft", (), {"model": Holder.model, "optimizer": None, "device": torch.device("cpu")})
held, text, kept = static_bytes(Holder), "", []
with cpu.limit(budget, lambda: static_bytes(Holder)):
    inside = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        while True:
            kept.append(torch.empty(2**18))
            held += 2**20
    except RuntimeError as error:
        text = str(error)
after = resource.getrlimit(resource.RLIMIT_DATA)
more = torch.empty(2**26).nbytes
print(json.dumps({"held": held, "text": text, "before": before, "inside": inside, "after": after, "more": more}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
@pytest.mark.fault("F20")
def test_the_limit_is_a_real_out_of_memory_at_the_estimated_size_and_is_taken_back() -> None:
    budget = 200 * 2**20
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(budget)],
        env={**os.environ, **HOST_LIMIT_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert "can't allocate memory" in found["text"]
    assert -0.02 * budget <= found["held"] - budget <= BOOKKEEPING_BYTES + 0.02 * budget
    assert found["inside"] != found["before"]
    assert found["after"] == found["before"]
    assert found["more"] == 2**28  # beyond the budget, after the limit


def test_allocations_of_a_users_own_thread_are_not_in_the_record() -> None:
    """The record is that of the thread that runs the steps: its limit, shown so that nobody relies on more."""

    def run() -> None:
        thread = threading.Thread(target=lambda: floats(500 * KIB))
        thread.start()
        thread.join()
        floats(100 * KIB)

    assert metered(run).allocated_bytes == 100 * KIB


def test_a_real_product_is_not_much_faster_than_its_ceiling() -> None:
    factor, ratios = torch.ones(384, 384), []
    for _ in range(3):  # a machine that is busy while the ceiling is measured makes it too low
        found, times = Cpu().ceilings(), []
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
    found = Cpu().ceilings()
    assert found.flops_per_s.keys() == {"fp32", *(CPU.capabilities() & {"bf16"})}
