"""The profile of a step: its phases in order, maxima that are kept, and what the timeline leaves out."""

from autofit.core.account import Account
from autofit.memory.peak import memory_use
from autofit.memory.profile import POINTS, Profile, profile
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

MIB = 2**20
CACHING, HOST = Account(allocator="caching", outside_bytes=100 * MIB), Account(allocator="host")


def steps(count: int, tensors: int = 4, accumulation: int = 1) -> Trace:
    """A few steps: activations that are released in the backward pass, and a state that the first update makes."""
    script = Script(micro_batch_size=4, modules=("net",))
    script.take(3 * MIB, Kind.PARAMETER, 0)
    for number in range(1, count + 1):
        gradient = -1
        for part in range(accumulation):
            script.mark(f"step {number} forward")
            kept = [script.take(MIB, Kind.ACTIVATION, 0) for _ in range(tensors)]
            script.mark(f"step {number} backward")
            gradient = script.take(3 * MIB, Kind.GRADIENT, 0) if part == 0 else gradient
            script.give(*reversed(kept))
        script.mark(f"step {number} optimizer")
        if number == 1:
            script.take(6 * MIB, Kind.OPTIMIZER_STATE)
        script.moment(2 * MIB)
        script.give(gradient)
    return script.trace()


def profile_of(trace: Trace, account: Account = HOST, accumulation_steps: int = 1) -> Profile:
    return profile(trace, memory_use(trace, account, accumulation_steps=accumulation_steps), account)


def test_the_timeline_is_that_of_the_last_step_in_phases() -> None:
    found = profile_of(steps(2))
    assert [phase.name for phase in found.phases] == ["forward", "backward", "optimizer"]
    assert [found.phases[0].start, found.phases[-1].end] == [0, len(found.live_bytes)]
    assert all(one.end == other.start for one, other in zip(found.phases, found.phases[1:], strict=False))
    assert min(found.live_bytes) >= 9 * MIB  # the optimizer's state is there from the first update on
    assert max(found.live_bytes) == (9 + 4 + 3) * MIB == found.peak_bytes


def test_the_kinds_of_each_point_sum_to_its_live_tensors() -> None:
    for found in (profile_of(steps(2)), profile_of(steps(1, accumulation=2), accumulation_steps=8)):
        assert {"parameter", "gradient", "activation", "optimizer state"} <= set(found.kinds)
        assert [sum(values) for values in zip(*found.kinds.values(), strict=True)] == list(found.live_bytes)
        assert len(set(found.kinds["parameter"])) == 1
        assert found.kinds["activation"][0] < max(found.kinds["activation"])


def test_a_short_peak_among_many_allocations_is_kept() -> None:
    script = Script(micro_batch_size=1)
    script.take(MIB, Kind.PARAMETER)
    script.mark("step 1 forward")
    for number in range(5000):
        script.moment(40 * MIB if number == 2601 else 1024)
    script.mark("step 1 optimizer")
    script.moment(2048)
    found = profile_of(script.trace())
    assert max(found.live_bytes) == 41 * MIB
    assert sum(value > 2 * MIB for value in found.live_bytes) == 1
    assert POINTS <= len(found.live_bytes) <= POINTS + len(found.phases)


def test_accumulation_shows_each_traced_micro_batch() -> None:
    found = profile_of(steps(1, accumulation=2), accumulation_steps=2)
    assert [phase.name for phase in found.phases] == ["forward", "backward", "forward", "backward", "optimizer"]


def test_batches_that_wait_on_a_host_are_in_every_point() -> None:
    script = Script(micro_batch_size=1)
    script.take(MIB, Kind.PARAMETER)
    waiting = [script.take(MIB, Kind.BATCH) for _ in range(2)]
    script.mark("step 1 forward")
    script.moment(MIB)
    script.give(*waiting)
    trace = script.trace()
    assert max(profile_of(trace, accumulation_steps=2).live_bytes) == 4 * MIB
    found = profile_of(trace, accumulation_steps=8)  # of its eight batches the trace has two
    assert max(found.live_bytes) == 10 * MIB == found.peak_bytes


def test_on_an_accelerator_cache_and_context_are_in_the_breakdown_alone() -> None:
    found = profile_of(steps(2), CACHING)
    assert sum(part.size_bytes for part in found.breakdown.kinds) == found.peak_bytes
    assert max(found.live_bytes) == found.breakdown.allocated_bytes < found.peak_bytes


def test_a_trace_without_steps_is_one_phase() -> None:
    script = Script(micro_batch_size=1)
    script.moment(MIB, 2 * MIB)
    found = profile_of(script.trace())
    assert [phase.name for phase in found.phases] == ["step"]
    assert max(found.live_bytes) == 3 * MIB
