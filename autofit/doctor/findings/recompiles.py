"""What torch.compile compiles again and again while the training runs."""

from collections.abc import Iterator

from autofit.core.units import format_duration
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.reports.sentences import counted


class Recompiles(Detector):
    """Compilations in steps after the first ones, which come again with each new size or value."""

    id = "recompiles"
    about = "compilations in the middle of the training"
    runs = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the steps cannot be run again, or nothing is compiled in them."""
        found = observation.further.recompilations()
        return found if isinstance(found, str) else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding. A single compilation, such as that of the first batch of another size, is minor."""
        found = observation.further.recompilations()
        if isinstance(found, str) or not found.compiled:
            return
        longer = "" if found.seconds is None else f" and took {format_duration(max(found.seconds, 0.0))} longer"
        yield Finding(
            id=self.id,
            what=(
                f"{found.compiled} of {counted(found.steps, 'step')} after the first ones compiled again{longer}, "
                f"because this no longer held: {found.causes}"
            ),
            remedy=(
                "give the batches few different sizes, leave out dynamic=False or call torch._dynamo.mark_dynamic for "
                "a size that varies, and keep numbers that change from step to step in tensors"
            ),
            evidence=(f"After {found.limit} compilations of a function, torch.compile runs it uncompiled.",),
            minor=found.compiled < 2,
        )
