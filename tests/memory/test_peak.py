"""What a plan takes, from its trace: the reading of the device, the phases, the parts."""

import pytest

from autofit.core.account import Account
from autofit.core.errors import UsageError
from autofit.memory.peak import memory_use
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

MIB = 2**20
CACHING, HOST = Account(allocator="caching", outside_bytes=100 * MIB), Account(allocator="host")


def step() -> Trace:
    """Three megabytes of weights, a peak of activations in the forward pass, and a state that stays."""
    script = Script(micro_batch_size=4, modules=("net",))
    script.take(3 * MIB + 1, Kind.PARAMETER, 0)
    script.mark("step 1 forward")
    kept = script.take(40 * MIB, Kind.ACTIVATION, 0)
    script.moment(25 * MIB)
    script.mark("step 1 backward")
    gradient = script.take(3 * MIB + 1, Kind.GRADIENT, 0)
    script.give(kept)
    script.mark("step 1 optimizer")
    script.take(6 * MIB, Kind.OPTIMIZER_STATE)
    script.give(gradient)
    return script.trace()


def test_a_host_counts_live_tensors_to_the_byte() -> None:
    found = memory_use(step(), HOST)
    assert found.judged_bytes == found.allocated_bytes == 68 * MIB + 1
    assert found.reserved_bytes is None
    assert found.peak.name == "step 1 forward"


def test_a_caching_allocator_counts_segments_and_what_lies_outside() -> None:
    found = memory_use(step(), CACHING)
    # To multiples of 512; of the 26 MiB that the temporary gets, the 1 MiB too much is not worth splitting off.
    assert found.allocated_bytes == (3 + 40 + 26) * MIB + 512
    # A segment of 20 for less than 10; own ones for the others, of an even number.
    assert found.reserved_bytes == (20 + 40 + 26) * MIB
    assert found.judged_bytes == (20 + 40 + 26 + 100) * MIB


def test_the_peak_is_at_its_event_and_static_is_what_stays() -> None:
    found, trace = memory_use(step(), CACHING), step()
    alive = trace.alive(found.peak.peak_event)
    assert sum(trace.tensors.sizes[handle] for handle in alive) == (40 + 25 + 3) * MIB + 1
    assert found.static_bytes == 9 * MIB + 1


def test_options_of_the_allocator_are_read() -> None:
    expandable = memory_use(step(), Account(allocator="caching", settings="expandable_segments:True"))
    assert expandable.reserved_bytes is not None
    assert expandable.reserved_bytes < (20 + 40 + 26) * MIB
    with pytest.raises(UsageError, match="unknown allocator option"):
        memory_use(step(), Account(allocator="caching", settings="no_such_option:1"))


def test_a_garbage_collecting_allocator_reserves_less_near_its_limit() -> None:
    script = Script()
    for size in (30, 44, 58, 72):  # none serves the next
        script.moment(size * MIB)
    account = Account(allocator="caching", settings="garbage_collection_threshold:0.5")
    assert memory_use(script.trace(), account).reserved_bytes == (30 + 44 + 58 + 72) * MIB
    near = memory_use(script.trace(), account, limit_bytes=150 * MIB).reserved_bytes
    assert near is not None
    assert near <= 150 * MIB
