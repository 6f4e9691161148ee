from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from autofit.memory.trace import Kind
from autofit.tracing.fake_copy import fake_mode
from autofit.tracing.plain_tensors import as_plain
from autofit.tracing.recorder import Recorder
from autofit.tracing.trace_assembly import assembled


def run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


LARGE = 200
"""Bytes; numbers and counters are smaller, and torch treats those of fake tensors differently."""


def traced(work: Callable[[], None]) -> tuple[list[int], Recorder]:
    """Returns the events of `work` in bytes, as the trace has them, and their recorder."""
    found = Recorder("cpu", run)
    with fake_mode(), as_plain(found), found:
        work()
    trace = assembled(found)
    sizes = [trace.tensors.sizes[e] if e >= 0 else -trace.tensors.sizes[~e] for e in trace.events]
    return [size for size in sizes if abs(size) > LARGE], found


def real(work: Callable[[], None]) -> list[int]:
    """Returns the same of plain tensors, by torch's own allocation record: below a dispatch mode they are not plain."""
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        work()
    finally:
        record: Any = torch._C._autograd._disable_profiler_legacy()
    sizes = [e.cpu_memory_usage() for thread in record for e in thread if e.kind() == "memory_alloc"]
    return [size for size in sizes if abs(size) > LARGE]


def residual() -> None:
    x = torch.ones(64, 8, requires_grad=True)
    y = x * 2
    (y.sin() + y.cos() + y).sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here


def tied() -> None:
    weight = torch.ones(8, 8, requires_grad=True)
    F.linear(F.linear(torch.ones(64, 8), weight), weight).sin().sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here


def recomputed() -> None:
    x = torch.ones(64, 8, requires_grad=True)
    checkpoint(
        lambda z: ((z * 2).sin() + (z * 3)).cos(), x, use_reentrant=False, preserve_rng_state=False
    ).sum().backward()


def in_pieces() -> None:
    x, weight, bias = torch.ones(4, 6, 8).transpose(0, 1), torch.ones(8, 8), torch.ones(64)[:8]
    F.linear(x, weight, bias)


def test_gradients_are_summed_in_place_as_the_engine_does() -> None:
    expected = real(residual)
    found, recorder = traced(residual)
    assert found == expected
    assert recorder.added, "without the correction the trace differs"


def test_a_gradient_that_is_a_view_is_not_summed_in_place() -> None:
    assert traced(tied)[0] == real(tied)


def test_a_sum_in_a_recomputed_forward_pass_is_a_sum_of_its_own() -> None:
    assert traced(recomputed)[0] == real(recomputed)


def test_linear_adds_its_bias_in_place_where_its_input_is_in_pieces() -> None:
    assert traced(in_pieces)[0] == real(in_pieces)


def test_a_users_sum_is_left_alone() -> None:
    def work() -> None:
        x = torch.ones(64)
        x = x * 2
        x = x + 1

    assert traced(work)[0] == real(work)


X = (16, 8)


def places(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.gather(0, places(*X)),
        lambda x: x.max(0)[0],
        lambda x: x.sort(0)[0],
        lambda x: x.topk(4, 0)[0],
        lambda x: x.cummax(0)[0],
        lambda x: x.index_select(0, places(12)),
        lambda x: x.take(places(*X)),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(X), pos_weight=torch.ones(8)),
    ],
    ids=["gather", "max", "sort", "topk", "cummax", "index_select", "take", "bce-logits-pw"],
)
def test_what_torch_writes_into_its_own_zeros_is_no_copy(work: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Rows `gather`, `sort`, `index_select`, `bce-logits-pw`, ... of the sweep: one tensor more than there was."""

    def backward() -> None:
        out = work(torch.ones(X, requires_grad=True) * 2)
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]  # torch has no types here

    def live(events: list[int]) -> int:
        now = most = 0
        for size in events:
            now += size
            most = max(most, now)
        return most

    found, recorder = traced(backward)
    assert recorder.replaced, "without the correction the trace differs"
    assert live(found) == live(real(backward))


def test_what_a_users_own_backward_scatters_is_left_alone() -> None:
    class Scattered(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.zeros(X).scatter_add(0, places(*X), gradient)

    def work() -> None:
        Scattered.apply(torch.ones(X, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here

    found, recorder = traced(work)
    assert not recorder.replaced
    assert found == real(work)


def test_marks_and_kinds_follow() -> None:
    recorder = Recorder("cpu", run)
    recorder.sizes, recorder.kinds = [8, 8, 4, 8], [Kind.BUFFER, Kind.TEMPORARY, Kind.TEMPORARY, Kind.GRADIENT]
    recorder.origins, recorder.initial, recorder.streams = [-1, 2, 3, 2], [0], [0, 7, 0, 9]
    recorder.events, recorder.added = [1, 2, 3, ~1, ~2, ~3], {3: 1}
    found = assembled(recorder)
    assert found.events == (0, 1, 2, ~2, ~1)
    assert found.tensors.sizes == (8, 8, 4)
    assert found.tensors.streams == (0, 1, 0)
    assert found.tensors.kinds == (Kind.BUFFER, Kind.GRADIENT, Kind.TEMPORARY)
    assert found.numbers == {0: 0, 1: 1, 2: 2, 3: 1}
    assert [found.place(event) for event in (2, 6)] == [3, 5]
