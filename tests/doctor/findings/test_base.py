"""What detectors share: sizes with their limits, and where an allocation was made."""

from types import SimpleNamespace
from typing import cast

import pytest

from autofit.doctor.diagnosis import MANY_STEPS
from autofit.doctor.findings.base import at_peak, is_nothing, is_slow, made, place_of, places_of
from autofit.doctor.holders import Holder
from autofit.doctor.observation import Observation
from tests.doctor.cases import MIB, held_outputs, keeping, observed


def of(peak_bytes: int = 1000 * MIB, budget_bytes: int = 1000 * MIB) -> Observation:
    """Returns an observation of which only the peak and the budget are known."""
    return cast(Observation, SimpleNamespace(peak_bytes=peak_bytes, budget_bytes=budget_bytes))


@pytest.mark.parametrize(
    ("peak_mib", "saved_bytes", "minor"),
    [
        (1000, 10 * MIB, False), (1000, 10 * MIB - 1, True), (10, MIB, False), (10, MIB - 1, True), (0, MIB, False),
    ],
)  # fmt: skip
def test_a_finding_counts_from_a_share_of_the_peak_and_a_size(peak_mib: int, saved_bytes: int, minor: bool) -> None:
    found = at_peak(of(peak_mib * MIB), saved_bytes, "at most")
    assert (found["size"].peak_bytes, found["size"].bound, found["minor"]) == (saved_bytes, "at most", minor)


@pytest.mark.parametrize(("saved_bytes", "nothing"), [(0, True), (-5, True), (MIB, True), (MIB + 1, False)])
def test_a_thousandth_of_the_peak_is_nothing(saved_bytes: int, nothing: bool) -> None:
    assert is_nothing(of(1000 * MIB), saved_bytes) == nothing


def test_growth_is_slow_if_many_steps_are_little_of_the_budget() -> None:
    least = 10 * MIB / MANY_STEPS
    assert is_slow(of(), int(least))
    assert not is_slow(of(), int(least) + 1)


def test_an_allocation_has_a_place() -> None:
    observation = observed(held_outputs(False))
    handle = max(observation.held, key=lambda each: observation.watch.sizes[each])
    place = place_of(observation, handle)
    assert place.line.startswith("tests/doctor/cases.py:")
    assert (place.module, place.library, place.holder) == ("head", "", "")
    assert place_of(observation, handle, Holder("x", " in step")).holder == "`x` in step"
    assert made(observation, handle) == f"float32 [512, 2000], made at {place.line} in head"


def test_places_are_listed_once_and_the_largest_first() -> None:
    observation = observed(keeping("evaluation with gradients"))
    handles = [handle for handle, step in enumerate(observation.watch.steps) if step == observation.step]
    found = places_of(observation, handles)
    assert len(found) == len(set(found)) == 8
    largest = max(handles, key=lambda handle: observation.watch.sizes[handle])
    assert found[0] == place_of(observation, largest)
    assert len(places_of(observation, handles, 3)) == 3
    assert places_of(observation, []) == ()
