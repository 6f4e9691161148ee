"""Headroom: the memory that is kept free by default, and the default budget that results from it."""

from autofit.core.budget import Budget
from autofit.core.units import format_bytes

HEADROOM_RATIO = 0.08
HEADROOM_BYTES = 512 * 2**20
"""Default headroom: 8 % of the available memory, at least 512 MiB. Peers leave 5 to 10 % (reference/reliability.md)."""
VARYING_FACTOR = 1.5
"""Factor on the headroom if shapes vary: fragmentation then grows for hours."""


def default_budget(available_bytes: int, varies: bool) -> Budget:
    """Returns the available memory less the headroom, with the arithmetic in words. At most half is kept free.

    Args:
        available_bytes: memory that this process could hold in total.
        varies: whether batches have varying shapes.
    """
    factor = VARYING_FACTOR if varies else 1.0
    headroom = round(max(available_bytes * HEADROOM_RATIO, HEADROOM_BYTES) * factor)
    size = max(available_bytes - headroom, available_bytes // 2)
    note = (
        f"{format_bytes(available_bytes)} available - {format_bytes(available_bytes - size)} headroom "
        f"({HEADROOM_RATIO:.0%}, at least {format_bytes(HEADROOM_BYTES)}"
        f"{f', times {VARYING_FACTOR} for varying shapes' if varies else ''}"
        f"{', at most half' if size > available_bytes - headroom else ''}) = {format_bytes(size)}"
    )
    return Budget(memory_bytes=size, memory_note=note, requested=False)
