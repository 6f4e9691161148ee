"""What makes up a peak: kinds that sum to it, repeated modules as one, and what stands whatever the batch."""

from autofit.memory.breakdown import BEYOND, OUTSIDE, anatomy, fixed_parts
from autofit.memory.peak import MemoryUse
from autofit.memory.replay import PhasePeak
from autofit.memory.trace import Kind, Mark, Tensors, Trace

MODULES = ("", "blocks.0.mlp", "blocks.1.mlp", "0.1", "blocks.0")
ROWS = (
    (100, Kind.PARAMETER, -1),
    (200, Kind.OPTIMIZER_STATE, -1),
    (30, Kind.ACTIVATION, 1),
    (40, Kind.ACTIVATION, 2),
    (5, Kind.TEMPORARY, 3),
    (7, Kind.TEMPORARY, 0),
    (9, Kind.TEMPORARY, -1),
    (100, Kind.GRADIENT, -1),
    (11, Kind.WORKSPACE, -1),
)
#            parameters and state, forward: all but the gradient, backward: the gradient comes, the rest goes
EVENTS = (0, 1, 2, 3, 4, 5, 6, 8, 7, ~2, ~3, ~4, ~5, ~6, ~7)
MARKS = (("step 1 forward", 2), ("step 1 backward", 8), ("step 1 optimizer", 14), ("end", 15))
TRACE = Trace(
    micro_batch_size=4,
    tensors=Tensors(
        sizes=tuple(r[0] for r in ROWS), kinds=tuple(r[1] for r in ROWS), origins=tuple(r[2] for r in ROWS)
    ),
    events=EVENTS,
    marks=tuple(Mark(name=name, event=event) for name, event in MARKS),
    modules=MODULES,
)


def use(reserved_bytes: int | None, outside_bytes: int = 0) -> MemoryUse:
    """Returns a use of memory whose peak of live tensors is that of the trace."""
    peak = PhasePeak(
        "step 1 backward", allocated_bytes=502, reserved_bytes=reserved_bytes or 502, peak_event=9, retries=0
    )
    return MemoryUse(4, peak.allocated_bytes, reserved_bytes, outside_bytes, (peak,), static_bytes=300)


def test_kinds_with_what_is_beyond_them_sum_to_the_peak() -> None:
    found = anatomy(TRACE, use(600, 50), 50)
    sizes = {part.name: part.size_bytes for part in found.kinds}
    assert sizes == {
        "optimizer state": 200, "parameter": 100, "gradient": 100, "activation": 70, "temporary": 21, "workspace": 11,
        BEYOND: 98, OUTSIDE: 50,
    }  # fmt: skip
    assert sum(sizes.values()) == 600 + 50
    assert (found.moment, found.allocated_bytes, found.reserved_bytes) == ("step 1 backward", 502, 600)


def test_a_host_has_neither_cache_nor_context() -> None:
    found = anatomy(TRACE, use(None), 0)
    assert {part.name for part in found.kinds}.isdisjoint({BEYOND, OUTSIDE})


def test_repeated_modules_are_one_part_and_bare_numbers_stay() -> None:
    found = anatomy(TRACE, use(600), 0)
    assert [(part.name, part.size_bytes, part.count) for part in found.modules] == [
        ("blocks.*.mlp", 70, 2),
        ("outside any module", 9, 1),
        ("the model itself", 7, 1),
        ("0.1", 5, 1),
    ]


def test_what_stands_has_the_gradients() -> None:
    assert {part.name: part.size_bytes for part in fixed_parts(TRACE)} == {
        "parameter": 100, "optimizer state": 200, "gradient": 100
    }  # fmt: skip


def test_without_updates_parameters_stand_alone() -> None:
    still = TRACE.model_copy(update={"marks": (Mark(name="step 1 forward", event=2), Mark(name="end", event=15))})
    assert {part.name for part in fixed_parts(still)} == {"parameter", "optimizer state"}
