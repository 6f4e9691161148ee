"""What makes the host wait for the device in each step."""

from collections.abc import Iterator

from autofit.core.units import format_duration
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.doctor.waits import PAGEABLE

EVERY_STEP = 0.5
"""Smallest number of waits per step that is shown."""


class Sync(Detector):
    """Operators outside the update for which the host waits, so that the device runs out of work."""

    id = "sync"
    about = "operators for which the host waits until the device has done its work"
    for_accelerators = True

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each line and reason, the most frequent first."""
        steps = max(len(observation.watch.levels), 1)
        what_if = observation.what_if
        pace = None if what_if is None or what_if.over or not observation.watch.waits else what_if.pace
        for (what, site), count in observation.watch.waits.most_common():
            if count / steps < EVERY_STEP:
                continue
            pageable = what == PAGEABLE
            waited_s = 0.0 if pace is None else pace.waits_s.get((what, site), 0.0)
            yield Finding(
                id=self.id,
                what=f"the host waits for the device in each step at {site}{_times(count / steps)}, because {what}",
                remedy=(
                    "pass pin_memory=True to the DataLoader, and copy with non_blocking=True"
                    if pageable
                    else "keep the value on the device, read it every few steps, or pass the size that is known"
                ),
                places=(observation.place_at(site),),
                evidence=(_waited(waited_s, 0.0 if pace is None else pace.step_s),),
            )


class EmptyCache(Detector):
    """Calls in each step that release the allocator's cache, which the next step allocates again."""

    id = "empty-cache"
    about = "the allocator's cache or Python's garbage, emptied in each step"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each line."""
        steps = max(len(observation.watch.levels), 1)
        for (name, site), count in observation.watch.cleanings.most_common():
            if count / steps < EVERY_STEP:
                continue
            yield Finding(
                id=self.id,
                what=(
                    f"each step calls {name} at {site}{_times(count / steps)}, which costs time and frees nothing that "
                    "the next step does not allocate again"
                ),
                remedy="call it once before the training, or after an evaluation, or not at all",
                places=(observation.place_at(site),),
            )


def _waited(waited_s: float, step_s: float) -> str:
    if not waited_s:
        return "How long the host waits was not measured."
    return f"It waits for at least {format_duration(waited_s)} of a step of {format_duration(step_s)}."


def _times(per_step: float) -> str:
    return f" ({per_step:.0f} times)" if round(per_step) > 1 else ""
