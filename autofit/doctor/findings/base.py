"""Detector: looks for one kind of finding in the watched steps of a training."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from autofit.doctor.diagnosis import LEAST_BYTES, LEAST_RATIO, MANY_STEPS, Basis, Bound, Finding, Place, Size
from autofit.doctor.holders import Holder
from autofit.doctor.observation import Observation
from autofit.doctor.what_if import Change

NOT_AGAIN = "no further steps were run"
"""Why a kind of finding is not looked for in a loop or a script, whose steps cannot be run again, or on request."""
ON_ACCELERATORS = "it concerns accelerators only"
"""Why a kind of finding is not looked for on a host."""
OVER = "the time for further steps was over; --time gives more"
"""Why a kind of finding is not looked for at the end of a diagnosis that took long."""
# What to keep instead of a tensor that uses a part of its memory: a view, or the result of an operator that needs more.
PART = "keep a copy of the part: tensor.clone() instead of the view"
WHOLE = "delete it after the step, or keep a number (loss.item()): its operator returns a part of a larger memory"


class Detector(ABC):
    """Looks for one kind of finding. `diagnose` makes one of each, in the process that trains.

    Attributes:
        id: kind of finding, as in `Finding.id`.
        about: what it is, as a phrase.
        runs: whether it runs further steps to find anything.
        for_accelerators: whether there is nothing to find on a host.
    """

    id: ClassVar[str]
    about: ClassVar[str]
    runs: ClassVar[bool] = False
    for_accelerators: ClassVar[bool] = False

    def skipped(self, observation: Observation) -> str:
        """Returns why `find` is not called; "" if it is."""
        if self.runs and observation.what_if is None:
            return NOT_AGAIN
        if self.runs and observation.what_if is not None and observation.what_if.over:
            return OVER
        if self.for_accelerators and observation.account.allocator == "host":
            return ON_ACCELERATORS
        return self.unchecked(observation)

    def unchecked(self, observation: Observation) -> str:
        """Returns why this kind of finding cannot be looked for, beside a lack of further steps; "" if it can."""
        return ""

    @abstractmethod
    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields what is found. Called once, after the last step; changes nothing."""

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns a change to the step that removes what was found, so that its size can be measured; None for none.

        Called for each finding that is not minor, if the step can be run again.
        """
        return None


def at_peak(observation: Observation, saved_bytes: int, bound: Bound = "", basis: Basis = "replayed") -> dict[str, Any]:
    """Returns the size of a finding at the peak, and whether it is minor, as fields of a `Finding`."""
    minor = saved_bytes < max(LEAST_RATIO * observation.peak_bytes, LEAST_BYTES)
    return {"size": Size(peak_bytes=saved_bytes, bound=bound, basis=basis), "minor": minor}


def is_nothing(observation: Observation, saved_bytes: int) -> bool:
    """Returns whether a change saves so little at the peak that it is not even a minor finding."""
    return saved_bytes <= LEAST_RATIO / 10 * observation.peak_bytes


def is_slow(observation: Observation, bytes_per_step: int) -> bool:
    """Returns whether memory grows too slowly to matter."""
    return bytes_per_step * MANY_STEPS < LEAST_RATIO * observation.budget_bytes


def place_of(observation: Observation, handle: int, holder: Holder | None = None) -> Place:
    """Returns where an allocation was made, and what holds it."""
    site = observation.watch.sites[handle]
    return Place(
        line=site.user,
        library=site.library,
        module=observation.module_of(handle),
        holder="" if holder is None else str(holder),
    )


def largest_of(observation: Observation, handles: Iterable[int]) -> int:
    """Returns the largest of some allocations."""
    return max(handles, key=lambda handle: observation.watch.sizes[handle])


def places_of(observation: Observation, handles: Iterable[int], most: int = 8) -> tuple[Place, ...]:
    """Returns the places where the largest of some allocations were made, each once."""
    by_size = sorted(handles, key=lambda handle: -observation.watch.sizes[handle])
    return tuple(dict.fromkeys(place_of(observation, handle) for handle in by_size))[:most]


def made(observation: Observation, handle: int) -> str:
    """Returns what an allocation holds and where it was made, in words."""
    place = place_of(observation, handle)
    where = f"{place.line} ({place.library})" if place.line and place.library else place.line or place.library
    part = observation.modules.get(observation.watch.origins[handle])
    numbered = place.module.rpartition(".")[2].isdecimal() and part is not None  # as in nn.Sequential
    kind = f" ({type(part).__name__})" if numbered else ""
    module = f" in {place.module}{kind}" if place.module else ""
    verb = "first read" if handle in observation.watch.outside else "made"
    return f"{observation.form_of(handle)}, {verb}{f' at {where}' if where else ''}{module}"
