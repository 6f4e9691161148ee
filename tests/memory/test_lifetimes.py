"""Lifetimes by traces that are made by hand: a step of a trace, and the peak with other lifetimes."""

import pytest

from autofit.core.account import Account
from autofit.memory.lifetimes import Gap, changed, step_of
from autofit.memory.peak import memory_use
from autofit.memory.trace import Kind, Trace
from tests.memory.traces import Script

HOST, CACHING = Account(allocator="host"), Account(allocator="caching")


def peak_bytes(trace: Trace, account: Account) -> int:
    return memory_use(trace, account).allocated_bytes


def sizes(trace: Trace) -> list[int]:
    """Returns the events as bytes, negative for a release."""
    return [trace.tensors.sizes[e] if e >= 0 else -trace.tensors.sizes[~e] for e in trace.events]


def two_steps() -> Trace:
    """Two steps with a weight of 100 bytes; the second has an activation of 20 and a result of 2 that stays."""
    script = Script()
    weight = script.take(100, Kind.PARAMETER)
    script.mark("step 1 forward")
    first = script.take(10)
    script.mark("step 1 backward")
    script.give(first)
    script.mark("step 2 forward")
    second = script.take(20)
    script.take(2)
    script.mark("step 2 backward")
    script.give(second)
    script.mark("step 2 optimizer")
    script.moment(7)
    script.give(weight)
    return script.trace()


def step(kept: int = 30) -> Trace:
    """A step whose peak of 180 is in the backward pass: weight 100, activation 50, kept through it, temporary 30."""
    script = Script()
    script.take(100, Kind.PARAMETER)
    script.mark("step 1 forward")
    activation = script.take(50, Kind.ACTIVATION)
    script.moment(20)
    script.mark("step 1 backward")
    script.moment(kept)
    script.give(activation)
    return script.trace()


def test_a_step_begins_with_what_is_alive_and_ends_with_the_next() -> None:
    second = step_of(two_steps(), 2)
    assert sizes(second) == [100, 20, 2, -20, 7, -7, -100]
    marks = [(mark.name, mark.event) for mark in second.marks]
    assert marks == [("step 2 forward", 1), ("step 2 backward", 3), ("step 2 optimizer", 4), ("end", 7)]
    first = step_of(two_steps(), 1)
    assert sizes(first) == [100, 10, -10]
    assert [mark.name for mark in first.marks] == ["step 1 forward", "step 1 backward", "end"]


def test_a_step_keeps_the_handles_and_the_peak_of_the_trace() -> None:
    whole = two_steps()
    second = step_of(whole, 2)
    assert second.tensors == whole.tensors
    assert peak_bytes(second, HOST) == peak_bytes(whole, HOST) == 122


def test_a_number_is_not_the_beginning_of_another() -> None:
    script = Script()
    script.mark("step 1 forward")
    script.moment(5)
    script.mark("step 10 forward")
    script.moment(500)
    whole = script.trace()
    assert peak_bytes(step_of(whole, 1), HOST) == 5
    assert peak_bytes(step_of(whole, 10), HOST) == 500


def test_a_step_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="found no step 3 in a trace"):
        step_of(two_steps(), 3)


def test_without_changes_nothing_changes() -> None:
    trace = step()
    assert changed(trace) == trace


def test_what_ends_early_is_released_once() -> None:
    trace = step()
    early = changed(trace, ends={1: 2})
    assert sizes(early) == [100, 50, -50, 20, -20, 30, -30]
    assert peak_bytes(trace, HOST) == 180
    assert peak_bytes(early, HOST) == 150


def test_the_peak_may_move_elsewhere() -> None:
    """Released after the forward pass, the activation of 50 leaves the peak of the forward pass: 100 + 50 + 20."""
    assert peak_bytes(changed(step(), ends={1: 4}), HOST) == 170


def test_an_end_after_the_real_one_changes_nothing() -> None:
    trace = step()
    assert changed(trace, ends={1: len(trace.events)}) == trace
    assert changed(trace, ends={2: 6}) == trace


def test_an_end_before_the_allocation_changes_nothing() -> None:
    assert sizes(changed(step(), ends={1: 0})) == sizes(step())


def test_what_is_never_made_is_missing() -> None:
    trace = changed(step(), without={1})
    assert sizes(trace) == [100, 20, -20, 30, -30]
    assert peak_bytes(trace, HOST) == 130


def test_in_a_gap_an_allocation_is_released_and_made_again() -> None:
    trace = step()
    gapped = changed(trace, gaps=[Gap(1, 2, 4)])
    assert sizes(gapped) == [100, 50, -50, 20, -20, 50, 30, -30, -50]
    again = gapped.events[5]
    assert again == len(trace.tensors.sizes), "an allocation that is made again has a new handle"
    assert gapped.tensors.kinds[again] is trace.tensors.kinds[1]
    assert gapped.events[-1] == ~again
    assert peak_bytes(gapped, HOST) == 180
    assert peak_bytes(changed(trace, gaps=[Gap(1, 2, 6)]), HOST) == 150


def test_a_gap_that_lasts_longer_than_its_allocation_ends_with_it() -> None:
    trace = step()
    gapped = changed(trace, gaps=[Gap(1, 4, len(trace.events))])
    assert sizes(gapped) == [100, 50, 20, -20, -50, 30, -30]
    assert peak_bytes(gapped, HOST) == 170


def test_a_gap_of_something_that_is_not_alive_is_nothing() -> None:
    assert changed(step(), gaps=[Gap(2, 4, 5)]) == step()


def test_an_allocation_may_have_two_gaps() -> None:
    script = Script()
    script.mark("step 1 forward")
    held = script.take(10)
    for _ in range(3):
        script.moment(100)
    script.give(held)
    trace = script.trace()
    gapped = changed(trace, gaps=[Gap(held, 1, 3), Gap(held, 5, 7)])
    assert sizes(gapped) == [10, -10, 100, -100, 10, 100, -100, -10, 100, -100, 10, -10]
    assert peak_bytes(gapped, HOST) == 110
    assert peak_bytes(changed(trace, gaps=[Gap(held, 1, 7)]), HOST) == 100


def test_marks_move_with_their_events() -> None:
    trace = step()
    assert [mark.event for mark in trace.marks] == [1, 4, 7]
    assert [mark.event for mark in changed(trace, ends={1: 2}).marks] == [1, 5, 7]
    assert [mark.event for mark in changed(trace, without={1}).marks] == [1, 3, 5]
    assert [mark.event for mark in changed(trace, gaps=[Gap(1, 2, 4)]).marks] == [1, 6, 9]


def test_the_phase_of_the_peak_is_that_of_the_changed_trace() -> None:
    assert memory_use(step(), HOST).peak.name.endswith("backward")
    assert memory_use(changed(step(), ends={1: 4}), HOST).peak.name.endswith("forward")


def test_the_caching_allocator_counts_in_blocks_of_512() -> None:
    """Weight 512, activation 512, temporary 512; the activation of 50 bytes saves a whole block."""
    trace = step()
    assert peak_bytes(trace, CACHING) == 3 * 512
    assert peak_bytes(changed(trace, without={1}), CACHING) == 2 * 512
    assert peak_bytes(step(600), CACHING) == 4 * 512
