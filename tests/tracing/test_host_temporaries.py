"""What CPU operators take beside their results is found by running them on a few samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autofit import Workload, devices
from autofit.core.briefing import Options
from autofit.core.trial import Purpose
from autofit.memory.peak import memory_use
from autofit.probing.local_bench import LocalBench
from autofit.tracing.host_temporaries import HostTemporaries

CPU = devices.choose("cpu")
aten = torch.ops.aten
SAMPLES = 24


def convolution(channels: int, kernel: int, stride: int, dtype: torch.dtype) -> tuple[Any, tuple[Any, ...]]:
    images = torch.randn(SAMPLES, channels, 24, 24, dtype=dtype)
    weight = torch.randn(32, channels, kernel, kernel, dtype=dtype)
    sides = ([stride, stride], [kernel // 2, kernel // 2], [1, 1], False, [0, 0], 1)
    return aten.convolution.default, (images, weight, None, *sides)


def backward(channels: int, kernel: int, stride: int, dtype: torch.dtype) -> tuple[Any, tuple[Any, ...]]:
    forward, (images, weight, _, *sides) = convolution(channels, kernel, stride, dtype)
    gradient = torch.randn_like(forward(images, weight, None, *sides))
    return aten.convolution_backward.default, (gradient, images, weight, None, *sides, [True, True, False])


def really_taken(func: Any, args: tuple[Any, ...]) -> int:
    with CPU.meter(lambda: 0) as reading:
        results = func(*args)
    kept = sum(t.nbytes for t in (results if isinstance(results, tuple) else (results,)) if t is not None)
    assert reading.memory is not None
    peak: int = reading.memory.allocated_bytes - kept
    return peak


@pytest.mark.parametrize("made", [convolution, backward])
@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 3, 1), (20, 3, 1), (32, 5, 2), (32, 1, 1)])
def test_what_a_convolution_takes_is_scaled_from_few_samples(
    made: Callable[..., Any], channels: int, kernel: int, stride: int
) -> None:
    func, args = made(channels, kernel, stride, torch.float32)
    found = HostTemporaries(CPU, torch.get_num_threads())(func, args, {}, func(*args))
    assert found == pytest.approx(really_taken(func, args), rel=0.02, abs=4096)


def test_a_call_of_the_same_kind_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    func, args = convolution(3, 3, 1, torch.float32)
    temporaries, runs = HostTemporaries(CPU, torch.get_num_threads()), list[Any]()

    def run(*call: object) -> int:
        runs.append(call)
        return 100

    monkeypatch.setattr(temporaries, "_run", run)
    assert [temporaries(func, args, {}, None) for _ in range(3)] == [100] * 3
    assert len(runs) == 2  # with few and with more samples


def test_operands_of_another_type_are_converted_first() -> None:
    half, single = torch.randn(100, 50).bfloat16(), torch.randn(100, 50)
    found = HostTemporaries(CPU, torch.get_num_threads())(aten.add.Tensor, (half, single), {}, half + single)
    assert found == half.numel() * 4 == really_taken(aten.add.Tensor, (half, single))
    assert HostTemporaries(CPU, torch.get_num_threads())(aten.add.Tensor, (single, single), {}, single) is None


def test_operand_of_another_type_is_converted_also_for_a_sum_in_place() -> None:
    half, single = torch.randn(100, 50).bfloat16(), torch.randn(100, 50)
    found = HostTemporaries(CPU, torch.get_num_threads())(aten.add_.Tensor, (single, half), {}, single)
    assert found == half.numel() * 4
    with CPU.meter(lambda: 0) as reading:
        single.add_(half)
    assert reading.memory is not None
    assert reading.memory.allocated_bytes == found


def test_an_operator_without_temporaries_has_none() -> None:
    single = torch.randn(8, 8)
    assert HostTemporaries(CPU, torch.get_num_threads())(aten.relu.default, (single,), {}, single) is None
    assert HostTemporaries(CPU, torch.get_num_threads())(aten.mm.default, (single, single), {}, single) is None


def test_a_call_that_cannot_be_made_up_takes_nothing_known() -> None:
    func, (images, weight, *rest) = convolution(3, 3, 1, torch.float32)
    assert HostTemporaries(CPU, torch.get_num_threads())(func, (images[:2], weight[:, :2], *rest), {}, None) == 0


def test_a_call_whose_operands_do_not_fit_into_memory_takes_nothing_known() -> None:
    vast = torch.empty(1, 2**60, device="meta")
    assert HostTemporaries(CPU, torch.get_num_threads())(aten.mean.dim, (vast, [1]), {}, None) == 0


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), index / 64), index % 10


@pytest.mark.slow
def test_the_estimate_of_a_convolutional_network_holds_before_anything_ran() -> None:
    """User trial "(a)": the copies that oneDNN makes were missed, and the peak was 20 to 35 % above its estimate."""
    model = nn.Sequential(
        nn.Conv2d(3, 20, 3, padding=1), nn.ReLU(), nn.Conv2d(20, 24, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Images(), batch_size=16)
    workload = Workload(model=model, loader=loader, loss_fn=functional.cross_entropy, global_batch_size=64)
    account = CPU.account()
    assert account is not None
    with LocalBench(workload, CPU, Options(numerics="exact")) as bench:
        plan = bench.briefing.space.baseline
        estimate = memory_use(bench.trace(plan), account, accumulation_steps=plan.accumulation_steps)
        measured = bench.evaluate(plan, Purpose.PROBE).measurement
    assert measured is not None
    assert plan.accumulation_steps == 4  # two of its four batches wait while the first two are traced
    assert estimate.judged_bytes == pytest.approx(measured.memory.judged_bytes, rel=0.01)
