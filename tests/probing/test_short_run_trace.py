"""Recorded: requests, marks and what is known at them, made into a trace."""

from autofit.devices.base import AllocatorRequest, Recording
from autofit.memory.trace import Kind, Trace
from autofit.probing.short_run_trace import InitialStorage, RecordedMark, trace_of


def recorded(
    requests: list[tuple[int, int]],
    points: list[tuple[int, RecordedMark]],
    static: dict[int, InitialStorage] | None = None,
    found: dict[int, int] | None = None,
) -> Trace:
    recording = Recording(
        lambda: None, found, [AllocatorRequest(*each) for each in requests], [place for place, _ in points]
    )
    return trace_of(recording, [point for _, point in points], static or {}, 4)


END = RecordedMark("end")


def test_requests_become_events_and_a_release_is_of_what_is_at_its_address() -> None:
    trace = recorded([(1, 100), (2, 50), (1, -100), (1, 70), (2, -50), (1, -70)], [(6, END)])
    assert trace.micro_batch_size == 4
    assert trace.tensors.sizes == (100, 50, 70)
    assert trace.events == (0, 1, ~0, 2, ~1, ~2)
    assert [(mark.name, mark.event) for mark in trace.marks] == [("end", 6)]


def test_what_was_there_before_comes_first_in_the_order_of_the_step() -> None:
    static = {9: InitialStorage(30, Kind.PARAMETER), 5: InitialStorage(20, Kind.BUFFER)}
    trace = recorded([(1, 100)], [(0, RecordedMark("step 1 forward")), (1, END)], static)
    assert trace.tensors.sizes == (30, 20, 100)
    assert trace.tensors.kinds == (Kind.PARAMETER, Kind.BUFFER, Kind.TEMPORARY)
    assert [mark.event for mark in trace.marks] == [2, 3]


def test_where_the_device_tells_what_there_is_its_sizes_count_and_the_rest_follows_by_size() -> None:
    static = {9: InitialStorage(30, Kind.PARAMETER), 8: InitialStorage(10, Kind.BUFFER)}
    trace = recorded([(2, -700)], [(1, END)], static, found={2: 700, 3: 600, 9: 32})
    assert trace.tensors.sizes == (32, 600, 700)  # nothing is allocated at 8: it lies elsewhere
    assert trace.events == (0, 1, 2, ~2)


def test_a_release_of_what_nobody_knows_is_left_out() -> None:
    assert recorded([(7, -40), (1, 100)], [(2, END)]).events == (0,)


def test_kinds_are_told_by_address_and_by_phase() -> None:
    points = [
        (1, RecordedMark("step 1 forward", None, {1: Kind.BATCH})),
        (4, RecordedMark("step 1 backward", Kind.ACTIVATION)),
        (5, RecordedMark("step 1 optimizer", None, {4: Kind.GRADIENT})),
        (5, END),
    ]
    trace = recorded([(1, 10), (2, 20), (3, 30), (3, -30), (4, 40)], points)
    assert trace.tensors.kinds == (Kind.BATCH, Kind.ACTIVATION, Kind.TEMPORARY, Kind.GRADIENT)


def test_a_point_without_a_name_makes_no_mark() -> None:
    trace = recorded([(1, 10)], [(0, RecordedMark("step 1 forward")), (1, RecordedMark("", Kind.BATCH)), (1, END)])
    assert [mark.name for mark in trace.marks] == ["step 1 forward", "end"]
    assert trace.tensors.kinds == (Kind.BATCH,)
