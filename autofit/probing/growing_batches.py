"""Growing batches: a proof runs them before its timed steps, which leaves a caching allocator in its worst state.

Training meets lengths in any order. Growing lengths are the worst order for the allocator: its cache fills with blocks
of shorter batches that are too small for the longer ones. The allocator may flush its cache during these steps, because
flushes end once all lengths have occurred. The timed steps follow, on a cache as in training, and must not cause a
flush.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from autofit.devices.base import Device
from autofit.workloads.batch_store import Typical
from autofit.workloads.lengths import elements
from autofit.workloads.tree import Batch


def run_growing(run_step: Callable[[Sequence[Batch]], object], typical: Typical, worst: Batch, device: Device) -> None:
    """Runs steps on growing batches, up to the worst, from an empty cache. Raises if memory runs out.

    These steps are not metered; a limit applies to them if the allocator has one.

    Args:
        run_step: runs one step on its micro batches.
        typical: the batches, in any order.
        worst: the largest micro batch known. The last step has nothing else.
        device: where the steps run.
    """
    device.release()
    growing = by_size(typical, rising=True)
    for number in range(growing.cycle):
        run_step(growing.of_step(number))
    run_step([worst] * typical.parts)


def by_size(typical: Typical, *, rising: bool) -> Typical:
    """Returns the micro batches of all steps, sorted by number of elements. The total work is the same."""
    places = [at for step in range(typical.steps) for at in typical.places(step)]
    places.sort(key=lambda at: elements(typical.batches[at]), reverse=not rising)
    tokens = None if typical.tokens is None else [typical.tokens[at] for at in places]
    return replace(typical, batches=[typical.batches[at] for at in places], tokens=tokens)
