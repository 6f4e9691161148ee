"""The trace at any micro batch size from the traces at a few."""

import pytest

from autofit.memory.alignment import BRIEF, Mismatch
from autofit.memory.replay import replay
from autofit.memory.trace import Kind, Trace
from tests.memory.steps import MIB, PARTIALS_MOST, WEIGHT, at, law, refused, step
from tests.memory.traces import Script


@pytest.mark.parametrize("size", [1, 2, 5, 64, 1000])
def test_an_affine_step_is_known_at_any_size(size: int) -> None:
    found = law(*(step(b, rows=0) for b in (2, 3, 7)))
    # The partial results stop growing at 8 samples, which none of these three shows.
    expected = step(size, rows=0)
    scaled = at(found, size)
    assert scaled.micro_batch_size == size
    assert scaled.events == expected.events
    assert scaled.marks == expected.marks
    if size <= 8:
        assert scaled.tensors == expected.tensors
    assert found.exact_at(size)


def test_what_is_taken_for_the_moment_may_be_missing_at_small_sizes() -> None:
    found = law(step(2), step(3), step(16))
    assert len(found.uneven) == 2
    for size in (2, 3, 16):
        assert found.exact_at(size)
        assert replay(at(found, size)).peak == replay(step(size)).peak
    assert not found.exact_at(8)
    scaled = at(found, 8)
    assert "2 allocations are not affine" in scaled.notes[-1]
    assert str(PARTIALS_MOST) in scaled.notes[-1]
    lasting = [s for s, k in zip(scaled.tensors.sizes, scaled.tensors.kinds, strict=True) if k is not Kind.TEMPORARY]
    assert lasting == [WEIGHT, 24 * MIB + 512, 8 * MIB, WEIGHT]


def test_a_buffer_that_stops_growing_between_two_traces_is_known_between_them() -> None:
    found = law(step(4), step(6), step(32))
    handle = max(found.uneven, key=lambda each: max(found.uneven[each]))
    for size in (4, 5, 6, 7, 8, 9, 20, 31, 32):  # it grows up to 8 samples
        assert at(found, size).tensors.sizes[handle] == min(MIB * size // 2, PARTIALS_MOST)


def test_a_buffer_of_whole_units_is_known_between_two_traces() -> None:
    def blocks(size: int) -> Trace:
        script = Script(size)
        script.moment(196608 * -(-197 * size // 64))
        return script.trace()

    found = law(blocks(53), blocks(153), blocks(443))
    assert found.uneven
    for size in (60, 76, 108, 150, 200, 400):
        assert at(found, size).tensors.sizes == blocks(size).tensors.sizes


def test_what_appears_between_two_traces_counts_as_being_there() -> None:
    found = law(step(2), step(3), step(6))
    handle = max(found.uneven, key=lambda each: max(found.uneven[each]))
    assert found.uneven[handle][:2] == (0, 0)
    for size in (4, 5, 6):
        assert at(found, size).tensors.sizes[handle] == MIB * size // 2


def test_a_buffer_that_begins_to_grow_between_two_traces_is_known_between_them() -> None:
    def late(size: int) -> Trace:
        script = Script(size)
        script.moment(max(20, size) * MIB)
        return script.trace()

    found = law(late(4), late(8), late(30), late(40))
    for size in (4, 15, 20, 21, 29, 40):
        assert at(found, size).tensors.sizes[0] == max(20, size) * MIB


def test_beyond_the_largest_trace_a_buffer_that_stayed_the_same_still_does() -> None:
    found = law(step(4), step(6), step(30), step(32))
    handle = max(found.uneven, key=lambda each: max(found.uneven[each]))
    assert at(found, 100).tensors.sizes[handle] == PARTIALS_MOST


def test_what_an_operator_takes_around_its_result_may_appear_with_the_size() -> None:
    def sorting(size: int) -> Trace:
        script = Script(size, modules=("words",))
        indices = script.take(8 * size if size > 6 else 0)
        gradient = script.take(WEIGHT, Kind.GRADIENT, 0)
        script.give(indices, gradient)
        return script.trace()

    found = law(sorting(2), sorting(6), sorting(8), sorting(20))
    assert [at(found, size).tensors.sizes[0] for size in (1, 4, 8, 10, 20)] == [0, 0, 64, 80, 160]


def test_a_temporary_that_stays_for_long_is_not_for_the_moment() -> None:
    def long(size: int) -> Trace:
        script = Script(size)
        held = script.take(512 * size * size)
        for _ in range(BRIEF):
            script.take(8, Kind.GRADIENT)
        script.give(held)
        return script.trace()

    assert "not affine in the micro batch" in refused(long(2), long(3), long(5))


def test_a_third_trace_that_contradicts_the_law_is_named() -> None:
    reason = refused(step(2, square=True), step(3, square=True), step(5, square=True))
    assert "not affine in the micro batch" in reason
    assert f"allocation 2 (activation) has {4 * MIB} at 2, {9 * MIB} at 3, {25 * MIB} at 5" in reason


def test_two_traces_prove_nothing() -> None:
    assert "expected at least 3 different sizes" in refused(step(2), step(3))
    assert "expected at least 3 different sizes" in refused(step(2), step(3), step(3))


def test_a_size_at_which_something_would_be_negative_is_refused() -> None:
    traces = []
    for size in (4, 5, 7):
        script = Script(size)
        script.take(512 * (size - 3), Kind.ACTIVATION)
        traces.append(script.trace())
    found = law(*traces)
    assert at(found, 3).tensors.sizes == (0,)
    refusal = found.at(2)
    assert isinstance(refusal, Mismatch)
    assert "allocation 0 (activation) would have -512 bytes" in refusal.reason


def ragged(size: int) -> Trace:
    """A step on the largest graphs: each next one is smaller than the one before it."""
    nodes = sum(40 - at // 2 for at in range(size))
    script = Script(size)
    script.take(WEIGHT, Kind.PARAMETER)
    script.mark("step 1 forward")
    batch = script.take(64 * nodes, Kind.BATCH)
    script.give(script.take(1024 * nodes, Kind.ACTIVATION), batch)
    return script.trace()


def test_where_the_batches_are_not_affine_everything_is_drawn_between_the_traces() -> None:
    found = law(ragged(4), ragged(8), ragged(32))
    assert found.exact_at(8)
    assert not found.exact_at(16)
    for size in (4, 6, 8, 16, 32):
        for drawn, true in zip(at(found, size).tensors.sizes, ragged(size).tensors.sizes, strict=True):
            assert drawn == pytest.approx(true, rel=0.05)


def test_the_streams_of_a_step_are_kept_at_any_size() -> None:
    def on_streams(size: int) -> Trace:
        trace = step(size, rows=0)
        streams = tuple(handle % 2 for handle in range(len(trace.tensors.sizes)))
        return trace.model_copy(update={"tensors": trace.tensors.model_copy(update={"streams": streams})})

    assert at(law(*(on_streams(size) for size in (2, 3, 7))), 5).tensors == on_streams(5).tensors
    assert at(law(*(step(size, rows=0) for size in (2, 3, 7))), 5).tensors.streams == ()
