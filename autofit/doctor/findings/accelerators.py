"""What costs memory or time on accelerators alone."""

import math
from collections.abc import Iterator

from autofit.core.units import format_bytes, format_duration
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector, at_peak, is_nothing, largest_of, made
from autofit.doctor.observation import Observation
from autofit.memory.peak import memory_use
from autofit.reports.sentences import counted

EXPANDABLE = "expandable_segments:True"
"""Option of the caching allocator with which segments grow, so that parts of them are not left unused."""
STORED = "keep them in that type, as with module.to(torch.bfloat16)"
ONCE = "call their modules inside one autocast context, which keeps the casts"
LEAST_FP32 = 0.5
"""Smallest share of products in float32 that is shown."""
ISSUE_RATIO = 0.9
"""Share of a step in which its work is issued, from which the device is said to wait for the host. A device that falls
behind still works when all is issued."""
LEAST_TRAFFIC = 0.01
"""Smallest share of a step's memory traffic that is shown."""


class Fragmentation(Detector):
    """Memory that the caching allocator reserves beyond live tensors, and would not with growing segments."""

    id = "fragmentation"
    about = "memory that the caching allocator reserves and cannot use"
    for_accelerators = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding, by replaying all steps with another option of the allocator.

        Steps before the watch are not in the record. They may have left segments that these steps use, or have needed
        more memory themselves. Both show in the allocator's own counts.
        """
        account, trace = observation.account, observation.whole
        if EXPANDABLE in account.settings:
            return
        use = memory_use(trace, account)
        settings = ",".join(part for part in (account.settings, EXPANDABLE) if part)
        then = memory_use(trace, account.model_copy(update={"settings": settings})).reserved_bytes or 0
        now, live = use.reserved_bytes or 0, use.allocated_bytes
        if observation.peaks is not None:
            then, now = max(then, observation.peaks[0]), min(now, observation.peaks[1])
        if is_nothing(observation, now - then):
            return
        yield Finding(
            id=self.id,
            what=f"the allocator reserves {format_bytes(now)} for tensors that peak at {format_bytes(live)}",
            remedy=f"start the training with PYTORCH_ALLOC_CONF={EXPANDABLE}",
            **at_peak(observation, now - then, "at least"),
        )


class Fp32Products(Detector):
    """Matrix products and convolutions in float32, for which tensor cores are not used."""

    id = "fp32-products"
    about = "products in float32, which tensor cores do not compute"
    for_accelerators = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for the products of a step."""
        flops = observation.watch.work[observation.step - 1].flops
        share = flops.get("fp32", 0) / max(sum(flops.values()), 1)
        if share < LEAST_FP32:
            return
        yield Finding(
            id=self.id,
            what=f"{share:.0%} of the arithmetic of products is in float32, which tensor cores do not compute",
            remedy='run the forward pass under torch.autocast, or call torch.set_float32_matmul_precision("high")',
            evidence=("The gain was not measured: autofit tune measures it, and checks the gradient.",),
        )


class LaunchBound(Detector):
    """Steps whose operators are so short that the device waits for the host to issue the next one."""

    id = "launch-bound"
    about = "operators that the host issues more slowly than the device runs them"
    runs = True
    for_accelerators = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the host waits for the device within the step."""
        pace = observation.further.pace
        if pace is None:
            return "no step could be timed"
        waits = sum(pace.waits_s.values()) > (1 - ISSUE_RATIO) * pace.step_s
        return "the host waits for the device within the step" if waits else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if the device has done all its work almost as soon as the host has issued it."""
        pace = observation.further.pace
        if pace is None or pace.issue_s < ISSUE_RATIO * pace.step_s:
            return
        operators = observation.watch.work[observation.step - 1].operators
        yield Finding(
            id=self.id,
            what=(
                f"the host needs {format_duration(pace.issue_s)} of a step of {format_duration(pace.step_s)} to issue "
                f"{counted(operators, 'operator')}, and the device waits for them"
            ),
            remedy=(
                "use larger micro batches, torch.compile, or an optimizer with fused=True; autofit tune searches these"
            ),
        )


class RepeatedCasts(Detector):
    """Weights that are cast to another type again and again, which autocast remembers only in part.

    Autocast keeps the cast of a weight until its context ends, and only of weights that need a gradient
    (https://docs.pytorch.org/docs/stable/amp.html; at/autocast_mode.cpp, `cached_cast`).
    """

    id = "autocast-cache"
    about = "weights that are cast to another type several times in a step, or although they are frozen"
    for_accelerators = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for frozen weights, and one for others."""
        watch, step = observation.watch, observation.step
        # Each pass needs the cast once, and once more if checkpointing runs it again.
        passes = 2 * max(sum(1 for mark in watch.marks if mark.name == f"step {step} backward"), 1)
        frozen, repeated = list[tuple[int, int]](), list[tuple[int, int]]()
        for cast, count in watch.casts.items():
            needless = count - passes if cast.trained else count
            if cast.step == step and needless > 0:
                moved = watch.sizes[cast.handle] + _elements(observation, cast.handle) * cast.dtype.itemsize
                (repeated if cast.trained else frozen).append((cast.handle, needless * moved))
        yield from self._found(observation, frozen, "frozen weights are cast to another type in each step", STORED)
        yield from self._found(observation, repeated, "weights are cast to another type several times in a pass", ONCE)

    def _found(
        self, observation: Observation, casts: list[tuple[int, int]], what: str, remedy: str
    ) -> Iterator[Finding]:
        """Yields a finding for casts, given as handle and bytes moved, if they are a part of the traffic."""
        moved_bytes = sum(each for _, each in casts)
        traffic_bytes = max(observation.watch.work[observation.step - 1].traffic_bytes, 1)
        if moved_bytes < LEAST_TRAFFIC * traffic_bytes:
            return
        largest = largest_of(observation, [handle for handle, _ in casts])
        yield Finding(
            id=self.id,
            what=f"{what}: {counted(len(casts), 'parameter')}, such as {made(observation, largest)}",
            remedy=remedy,
            evidence=(
                f"These casts read and write {format_bytes(moved_bytes)} in a step, "
                f"{moved_bytes / traffic_bytes:.0%} of what all its operators do.",
            ),
        )


def _elements(observation: Observation, handle: int) -> int:
    form = observation.watch.forms[handle]
    return 0 if form is None else math.prod(form[1])
