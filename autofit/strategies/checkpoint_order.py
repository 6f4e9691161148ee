"""Checkpoint order: which blocks to checkpoint first, by the memory that they free for the work that they repeat.

The order is counted on one batch and never timed, so the same model and data give the same order on every day and in
every process. A plan names it, unless it is the order of the modules.

Memory is that of the highest point of the backward pass. When the backward pass reaches a checkpointed block, the block
is recomputed while everything before it is still kept. So the last block frees almost nothing, and of equal blocks the
first are the best (reference/strategy_tuners.md 5: rank by recomputation per byte; no solver is needed).
"""

from collections.abc import Collection, Sequence

from autofit.strategies.base import Span

FLOPS_PER_BYTE = 20.0
"""Operations of products counted as long as one byte of memory traffic. Few on a CPU, more on a GPU: a compromise."""
NEARLY = 0.95
"""Share of the best worth from which a block counts as equally good. Of equally good blocks the first one is taken."""
GAIN = 0.01
"""Minimum share of a step's time that another order than that of the modules must save at some limit on memory."""


def cost_of(span: Span) -> float:
    """Returns the time of a part's forward pass in arbitrary units."""
    return span.flops + FLOPS_PER_BYTE * span.traffic_bytes


def peak_bytes(spans: Sequence[Span], chosen: Collection[int]) -> int:
    """Returns the kept and recomputed bytes at the highest point of a backward pass.

    Args:
        spans: the parts of a forward pass, in order.
        chosen: the blocks that are checkpointed.
    """
    kept = peak = 0
    for span in spans:
        peak = max(peak, kept + span.saved_bytes)
        kept += span.input_bytes if span.block in chosen else span.saved_bytes
    return peak


def order_of(spans: Sequence[Span], count: int) -> tuple[int, ...]:
    """Returns the blocks 0 to `count` - 1 in the order in which they are worth checkpointing.

    Each next block is the one that lowers the peak most for its work. If none lowers it alone, it is the one that frees
    the most bytes for its work. Blocks that did not run are last. The order of the modules is returned if it is nearly
    as good.
    """
    costs = _costs(spans, count)
    freed = [
        sum(max(span.saved_bytes - span.input_bytes, 0) for span in spans if span.block == block)
        for block in range(count)
    ]
    left = [block for block in range(count) if costs[block]]
    idle = [block for block in range(count) if not costs[block]]
    chosen: list[int] = []
    while left:
        before = peak_bytes(spans, chosen)
        worth = {block: (before - peak_bytes(spans, [*chosen, block])) / costs[block] for block in left}
        if max(worth.values()) <= 0:
            worth = {block: freed[block] / costs[block] for block in left}
        best = max(worth.values())
        chosen.append(next(block for block in left if worth[block] >= NEARLY * best))
        left.remove(chosen[-1])
    order, modules = (*chosen, *idle), tuple(range(count))
    return modules if _excess(spans, modules, order) <= GAIN else order


def _costs(spans: Sequence[Span], count: int) -> list[float]:
    return [sum(cost_of(span) for span in spans if span.block == block) for block in range(count)]


def _excess(spans: Sequence[Span], order: Sequence[int], other: Sequence[int]) -> float:
    """Returns the largest share of a step's time that `order` costs more than `other` at any limit on memory."""
    costs = _costs(spans, len(order))
    step, worst = 3 * sum(costs) or 1.0, 0.0  # a backward pass takes about twice as long as a forward pass
    for length in range(1, len(other) + 1):
        limit, time = peak_bytes(spans, other[:length]), step + sum(costs[block] for block in other[:length])
        fits = (count for count in range(len(order) + 1) if peak_bytes(spans, order[:count]) <= limit)
        needed = next(fits, len(order))
        worst = max(worst, (step + sum(costs[block] for block in order[:needed])) / time - 1)
    return worst
