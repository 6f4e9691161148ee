"""Main memory that the workers of a loader fill while they make batches."""

from collections.abc import Iterator

from autofit import devices
from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import LEAST_RATIO, MANY_STEPS, Finding, Size
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.reports.sentences import counted


class GrowingWorkers(Detector):
    """Workers whose own memory grows with each sample.

    A worker is a fork of the training's process and shares its memory until one of them writes to it. Python writes to
    an object whenever it is used, to count the references to it, so that each object of a large list is copied sooner
    or later by each worker (https://github.com/pytorch/pytorch/issues/13246). A cache in a data set is the other cause.
    """

    id = "worker-growth"
    about = "memory of the loader's workers that grows with each sample"
    runs = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the loader cannot be read again, has no workers, or these cannot be watched."""
        found = observation.further.worker_growth()
        return found if isinstance(found, str) else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if the workers have grown in each interval."""
        found = observation.further.worker_growth()
        if isinstance(found, str) or not found.bytes_per_sample:
            return
        (first, before), (last, after) = found.levels[0], found.levels[-1]
        per_step = int(found.bytes_per_sample * found.samples_per_step)
        slow = per_step * MANY_STEPS < LEAST_RATIO * devices.host().capacity_bytes()
        yield Finding(
            id=self.id,
            what=(
                f"{counted(found.workers, 'worker')} of the loader grew by "
                f"{format_bytes(int(1000 * found.bytes_per_sample))} of main memory per 1,000 samples"
            ),
            remedy=(
                "keep the data set in one NumPy array or tensor instead of lists and dicts of Python objects, which "
                "each worker copies when it uses them, and do not let the data set keep samples"
            ),
            size=Size(host_bytes_per_step=per_step, basis="measured"),
            evidence=(
                f"Their own memory went from {format_bytes(before)} after {first:,} samples to {format_bytes(after)} "
                f"after {last:,}, and rose in each of {len(found.levels) - 1} intervals.",
                "What is copied or kept once per sample stops growing when each worker has used all samples.",
            ),
            minor=slow,
        )
