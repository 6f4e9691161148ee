"""What is alive in a trace, and which traces are none."""

import pytest
from pydantic import ValidationError

from autofit.memory.trace import Kind, Mark, Tensors, Trace

TENSORS = Tensors(sizes=(100, 20, 30), kinds=(Kind.PARAMETER, Kind.BATCH, Kind.BATCH), origins=(-1, -1, -1))
TRACE = Trace(micro_batch_size=2, tensors=TENSORS, events=(0, 1, ~1, 2), marks=(Mark(name="end", event=4),))


@pytest.mark.parametrize(("count", "alive"), [(0, set()), (2, {0, 1}), (3, {0}), (4, {0, 2})])
def test_alive_is_what_was_taken_and_not_given_back(count: int, alive: set[int]) -> None:
    assert TRACE.alive(count) == alive


def test_live_bytes_follow_each_event_of_all_kinds_or_one() -> None:
    assert list(TRACE.live_bytes()) == [100, 120, 100, 130]
    assert list(TRACE.live_bytes(Kind.BATCH)) == [0, 20, 0, 30]
    assert max(TRACE.model_copy(update={"events": (0, 1, 2, ~1)}).live_bytes(Kind.BATCH)) == 50


def test_a_trace_survives_json() -> None:
    assert Trace.model_validate_json(TRACE.model_dump_json()) == TRACE


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValidationError, match="differ in length"):
        Tensors(sizes=(1, 2), kinds=(Kind.BUFFER,), origins=(-1,))
    with pytest.raises(ValidationError, match="differ in length"):
        Tensors(sizes=(1, 2), kinds=(Kind.BUFFER, Kind.BUFFER), origins=(-1, -1), streams=(0,))
