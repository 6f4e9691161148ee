"""A trace through the simulated allocator."""

import pytest

from autofit.memory.allocator.settings import MIB, Settings
from autofit.memory.allocator.simulator import CachingAllocator
from autofit.memory.replay import replay
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script


def steps(count: int = 2) -> Trace:
    """Weights of 10 MiB; activations of 30 and 40 MiB; a gradient; from the first step on 20 MiB of state."""
    script = Script(modules=("", "first", "second"))
    weight = script.take(10 * MIB, Kind.PARAMETER, 1)
    for step in range(1, count + 1):
        script.mark(f"step {step} forward")
        activations = [script.take(30 * MIB, Kind.ACTIVATION, 1), script.take(40 * MIB, Kind.ACTIVATION, 2)]
        script.mark(f"step {step} backward")
        gradient = script.take(10 * MIB, Kind.GRADIENT, 1)
        script.give(*reversed(activations))
        script.mark(f"step {step} optimizer")
        if step == 1:
            script.take(20 * MIB, Kind.OPTIMIZER_STATE, 1)
        script.moment(10 * MIB)
        script.give(gradient)
    assert weight == 0
    return script.trace()


def test_each_phase_has_its_own_peaks() -> None:
    phases = {phase.name: phase.allocated_bytes // MIB for phase in replay(steps()).phases}
    assert phases == {
        "before the first step": 10,
        "step 1 forward": 80, "step 1 backward": 90, "step 1 optimizer": 50,
        "step 2 forward": 100, "step 2 backward": 110, "step 2 optimizer": 50,
    }  # fmt: skip


def test_the_peak_is_that_of_the_largest_phase() -> None:
    assert replay(steps()).peak.allocated_bytes == 110 * MIB
    assert replay(steps(1)).peak.allocated_bytes == 90 * MIB


def test_reserved_is_what_the_segments_hold() -> None:
    # 10, 30, 40, 10 MiB have segments of their own; the state takes part of the 30 that an activation left.
    assert replay(steps(1)).peak.reserved_bytes == 90 * MIB


def test_what_is_alive_at_the_event_of_the_peak_adds_up_to_it() -> None:
    trace = steps()
    found: dict[Kind, int] = {}
    for handle in trace.alive(replay(trace).peak.peak_event):
        kind = trace.tensors.kinds[handle]
        found[kind] = found.get(kind, 0) + trace.tensors.sizes[handle] // MIB
    assert found == {Kind.ACTIVATION: 70, Kind.OPTIMIZER_STATE: 20, Kind.PARAMETER: 10, Kind.GRADIENT: 10}


@pytest.mark.parametrize("limit_mib", [40, 79, 80, 100, 110, 111, 129, 130, 131, 200])
def test_fitting_without_retries_asks_for_more_room_than_fitting_at_all(limit_mib: int) -> None:
    endless = replay(steps())
    result = replay(steps(), CachingAllocator(limit_bytes=limit_mib * MIB))
    assert result.fits_without_retries == (limit_mib * MIB >= endless.peak.reserved_bytes)
    assert result.fits or not result.fits_without_retries
    if limit_mib * MIB < endless.peak.allocated_bytes:
        assert not result.fits


def test_a_retry_is_not_a_failure() -> None:
    script = Script()
    script.moment(60 * MIB)
    script.take(80 * MIB)
    result = replay(script.trace(), CachingAllocator(capacity_bytes=100 * MIB))
    assert result.fits
    assert not result.fits_without_retries
    assert result.peak.retries == 1


def test_where_memory_runs_out_is_the_last_phase() -> None:
    trace = steps()
    result = replay(trace, CachingAllocator(limit_bytes=85 * MIB))
    assert not result.fits
    assert result.phases[-1].name == "step 1 backward"
    assert result.ran_out_at is not None
    assert trace.tensors.kinds[trace.events[result.ran_out_at]] is Kind.GRADIENT


def test_nothing_is_asked_of_the_allocator_for_an_empty_tensor() -> None:
    script = Script()
    script.give(script.take(0))
    assert replay(script.trace()).peak.allocated_bytes == 0


def test_settings_reach_the_allocator() -> None:
    script = Script()
    script.moment(11 * MIB)
    plain, grown = (replay(script.trace(), CachingAllocator(Settings(expandable_segments=on))) for on in (False, True))
    assert (plain.peak.reserved_bytes, grown.peak.reserved_bytes) == (12 * MIB, 20 * MIB)


def test_an_empty_trace_takes_nothing() -> None:
    result = replay(Script().trace())
    assert (result.peak.allocated_bytes, result.peak.reserved_bytes, result.fits_without_retries) == (0, 0, True)


def test_memory_of_one_stream_does_not_serve_another() -> None:
    """Each of two tensors, one after the other, gets a segment of its own if they are of different streams."""
    script = Script()
    script.mark("step 1 forward")
    script.moment(40 * MIB)
    script.moment(40 * MIB)
    trace = script.trace()
    other = trace.tensors.model_copy(update={"streams": (0, 1)})
    alone, apart = (
        replay(each, CachingAllocator()).peak for each in (trace, trace.model_copy(update={"tensors": other}))
    )
    assert alone.allocated_bytes == apart.allocated_bytes == 40 * MIB
    assert alone.reserved_bytes == 40 * MIB
    assert apart.reserved_bytes == 80 * MIB
