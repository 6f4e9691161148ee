"""Which allocation of one trace is which of another, and where traces part."""

from autofit.memory.replay import replay
from autofit.memory.trace import Kind
from tests.memory.steps import at, law, refused, step
from tests.memory.traces import Script


def test_the_order_of_the_traces_does_not_matter() -> None:
    assert law(step(7), step(4), step(5)) == law(step(4), step(5), step(7))


def test_releases_in_a_row_may_come_in_any_order() -> None:
    found = law(step(4), step(5, swapped=True), step(7))
    assert replay(at(found, 6)) == replay(step(6))


def test_a_lasting_allocation_more_is_named_with_its_place() -> None:
    reason = refused(step(2), step(3), step(7, extra=1))
    assert reason.startswith("the events at micro batches of 2 and 7 differ in step 1 backward")
    assert "(gradient of layer)" in reason


def test_an_allocation_of_another_kind_is_named() -> None:
    script = Script(5)
    script.take(5, Kind.BATCH)
    others = []
    for size in (2, 3):
        other = Script(size)
        other.take(size, Kind.BUFFER)
        others.append(other.trace())
    assert "allocation 0 (buffer) is allocation 0 (batch)" in refused(*others, script.trace())
