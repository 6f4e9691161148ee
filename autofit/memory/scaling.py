"""Scaling: the trace of a plan at any micro batch size, computed from its traces at a few sizes.

The size of every lasting allocation is a + c·b in the micro batch b, with integers a and c
(reference/memory_prediction.md 5). Two traces give a and c, all others check them. Momentary allocations of an operator
may depend on the device instead (a sum allocates memory for a limited number of thread blocks). If they are not affine,
they are interpolated linearly between the traced sizes. So is everything if the batches themselves are not affine, for
example graphs with different numbers of nodes. Peaks are not scaled: the scaled trace is replayed.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, gcd

from autofit.memory.alignment import Alignment, Mismatch, aligned, described
from autofit.memory.trace import Kind, Tensors, Trace

LEAST_TRACES = 3
SHOWN = 3
FEWEST_UNITS = 32
"""Minimum number of units from which an error in the unit has little effect."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The size of each allocation as a function of the micro batch.

    Attributes:
        pattern: the trace whose events are valid at all sizes.
        traced: the micro batch sizes that were traced, ascending.
        fixed: bytes at a micro batch of 0, by handle. May be negative.
        per_sample: additional bytes per sample, by handle.
        uneven: allocations that are not affine: handle to bytes at each traced size.
        lasting: the allocations among `uneven` that outlive their operator.
    """

    pattern: Trace
    traced: tuple[int, ...]
    fixed: tuple[int, ...]
    per_sample: tuple[int, ...]
    uneven: dict[int, tuple[int, ...]]
    lasting: frozenset[int] = frozenset()

    def exact_at(self, micro_batch_size: int) -> bool:
        """Returns whether no size at this micro batch is interpolated or extrapolated."""
        return not self.uneven or micro_batch_size in self.traced

    def at(self, micro_batch_size: int) -> Trace | Mismatch:
        """Returns the trace at any micro batch size, or a `Mismatch` if a size would be negative."""
        sizes = [a + c * micro_batch_size for a, c in zip(self.fixed, self.per_sample, strict=True)]
        for handle, nodes in self.uneven.items():
            beyond = handle in self.lasting and micro_batch_size > self.traced[-1]
            estimate = _line if beyond else _between
            sizes[handle] = max(int(estimate(self.traced, nodes, micro_batch_size)), 0)
        if sizes and min(sizes) < 0:
            handle = sizes.index(min(sizes))
            what = described(self.pattern, handle)
            return Mismatch(f"at a micro batch of {micro_batch_size}, {what} would have {sizes[handle]} bytes")
        # model_copy does not validate the columns again, which would take longer than the replay.
        tensors = self.pattern.tensors.model_copy(update={"sizes": tuple(sizes)})
        notes = (*self.pattern.notes, *self._notes(micro_batch_size))
        return self.pattern.model_copy(
            update={"micro_batch_size": micro_batch_size, "tensors": tensors, "notes": notes}
        )

    def _notes(self, micro_batch_size: int) -> tuple[str, ...]:
        if self.exact_at(micro_batch_size):
            return ()
        handle = max(self.uneven, key=lambda h: max(self.uneven[h]))
        traced = ", ".join(map(str, self.traced))
        return (
            f"{len(self.uneven)} allocations are not affine in the micro batch and are interpolated from the traces "
            f"at {traced}; the largest is {described(self.pattern, handle)}, of up to {max(self.uneven[handle])} bytes",
        )


def scaling(traces: Sequence[Trace]) -> Scaling | Mismatch:
    """Returns the scaling of the traces of one plan at `LEAST_TRACES` different micro batch sizes or more.

    The largest should be at least the largest size that will be requested.
    """
    traces = sorted(traces, key=lambda trace: trace.micro_batch_size)
    traced = tuple(trace.micro_batch_size for trace in traces)
    if len(set(traced)) < max(LEAST_TRACES, len(traces)):
        expected = f"expected at least {LEAST_TRACES} different sizes"
        return Mismatch(f"the traces are at micro batches of {traced}; {expected}")
    alignment = aligned(traces)
    if isinstance(alignment, Mismatch):
        return alignment
    fixed, per_sample, uneven_handles = _laws(alignment, traced)
    pattern = traces[0].model_copy(
        update={
            "tensors": Tensors(
                sizes=tuple(alignment.sizes[0]),
                kinds=tuple(alignment.kinds),
                origins=tuple(alignment.origins),
                streams=tuple(alignment.streams) if any(alignment.streams) else (),
            ),
            "events": tuple(alignment.events),
            "marks": tuple(alignment.marks),
            "answered": max(trace.answered for trace in traces),
            "notes": tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
            "work": None,
        }
    )
    uneven = {handle: tuple(sizes[handle] for sizes in alignment.sizes) for handle in uneven_handles}
    lasting = [handle for handle in uneven_handles if not alignment.momentary[handle]]
    ragged = any(alignment.kinds[handle] is Kind.BATCH for handle in lasting)
    # Straight: all sizes are on the line through the first and the last.
    straight = all(
        node == _line(traced, uneven[handle], size)
        for handle in lasting
        for size, node in zip(traced, uneven[handle], strict=True)
    )
    if not ragged and not straight:
        return Mismatch(_not_affine(pattern, alignment, traced, lasting))
    return Scaling(pattern, traced, fixed, per_sample, uneven, frozenset(lasting))


def _laws(alignment: Alignment, traced: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Returns a and c of each allocation from the two smallest traces, and the handles that are not affine."""
    fixed, per_sample, uneven_handles = [], [], []
    for handle, sizes in enumerate(zip(*alignment.sizes, strict=True)):
        slope, rest = divmod(sizes[1] - sizes[0], traced[1] - traced[0])
        start = sizes[0] - slope * traced[0]
        fixed.append(start)
        per_sample.append(slope)
        if rest or any(start + slope * b != size for b, size in zip(traced, sizes, strict=True)):
            uneven_handles.append(handle)
    return tuple(fixed), tuple(per_sample), uneven_handles


def _line(traced: tuple[int, ...], nodes: tuple[int, ...], size: int) -> Fraction:
    """Returns the value at a size of the line through the first and the last traced size."""
    return nodes[0] + Fraction((nodes[-1] - nodes[0]) * (size - traced[0]), traced[-1] - traced[0])


def _between(traced: tuple[int, ...], nodes: tuple[int, ...], size: int) -> int:
    """Returns the size at a micro batch of an allocation that is not affine.

    A momentary allocation grows with the work of its operator up to what the device can process at once, or exists only
    above a certain amount of work. It is piecewise linear. Between two traced sizes it follows the line from the left
    or the line from the right, and changes where they intersect. Below all traces it is on the line from 0, above
    them its last line continues.
    """
    if size <= traced[0]:
        return nodes[0] * size // traced[0]
    right = min(bisect_left(traced, size), len(traced) - 1)
    (b1, s1), (b2, s2) = ((traced[i], nodes[i]) for i in (right - 1, right))
    chord = s1 + Fraction((s2 - s1) * (size - b1), b2 - b1)
    if size < b2 and (stair := _stair((b1, s1), (b2, s2), gcd(*nodes), size)):
        return stair
    if size >= b2:
        return int(chord)
    if s1 == 0:  # it begins somewhere in between: assume that it exists
        return s2 * size // b2
    slopes = [_slope(traced, nodes, right - 1), _slope(traced, nodes, right + 1)]
    # If the line from the left is steeper than one from 0, there was a jump, after which the size grows with the work.
    lines = s1 + min(slopes[0], Fraction(s1, b1)) * (size - b1), s2 - slopes[1] * (b2 - size)
    if min(lines) >= chord:
        return int(min(lines))
    return int(max(lines) if max(lines) <= chord else chord)


def _stair(left: tuple[int, int], right: tuple[int, int], unit: int, size: int) -> int:
    """Returns the size, between two traced sizes, of an allocation that grows in whole units per number of samples.

    0 if the two sizes do not grow in this way, or have too few units to decide.
    """
    (b1, s1), (b2, s2) = left, right
    lower, upper = max(Fraction(s1 - unit, b1), Fraction(s2 - unit, b2)), min(Fraction(s1, b1), Fraction(s2, b2))
    if lower >= upper or s1 < FEWEST_UNITS * unit:
        return 0
    return ceil((lower + upper) / 2 * size / unit) * unit


def _slope(traced: tuple[int, ...], nodes: tuple[int, ...], right: int) -> Fraction:
    """Returns the slope of the line that ends at a traced size: from 0 for the first, 0 after the last."""
    if right == 0:
        return Fraction(nodes[0], traced[0])
    if right == len(traced):
        return Fraction(0)
    return Fraction(nodes[right] - nodes[right - 1], traced[right] - traced[right - 1])


def _not_affine(pattern: Trace, alignment: Alignment, traced: tuple[int, ...], handles: list[int]) -> str:
    shown = "; ".join(
        f"{described(pattern, handle)} has "
        + ", ".join(f"{sizes[handle]} at {b}" for b, sizes in zip(traced, alignment.sizes, strict=True))
        for handle in handles[:SHOWN]
    )
    more = f", and {len(handles) - SHOWN} more" if len(handles) > SHOWN else ""
    return f"lasting allocations are not affine in the micro batch: {shown} bytes{more}"
