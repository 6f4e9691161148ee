"""Versions that do not fit together, and known defects of versions that the training meets."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from autofit import devices
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector, place_of
from autofit.doctor.observation import Observation

HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Defect:
    """A known defect of some versions that costs memory or time in a training.

    Attributes:
        meets: returns an allocation of the operator that it concerns, by handle; None if the training has none, given
            the versions of `Device.versions`.
        what: what happens, as a sentence without its place.
        remedy: what to change.
        source: where it was reported, and where it is described.
    """

    meets: Callable[[Observation, Mapping[str, str]], int | None]
    what: str
    remedy: str
    source: str


def convolution_without_cudnn(observation: Observation, versions: Mapping[str, str]) -> int | None:
    """Returns a convolution in three dimensions that torch does not compute with cuDNN, although there is one.

    From 2.9.1 on, torch leaves out cuDNN 9.8 to 9.14, which computed wrong results, for contiguous weights that are
    larger than one element, in bf16 and fp16 (`use_cudnn` in aten/src/ATen/native/Convolution.cpp, read in November
    2026).
    """
    watch = observation.watch
    if not 90800 <= int(versions.get("cudnn", 0)) < 91500:
        return None
    weights = [each for _, each in watch.parameters() if each.dim() == 5]
    if not any(max(each.shape[2:]) > 1 and each.is_contiguous() for each in weights):
        return None
    for handle, (name, form) in enumerate(zip(watch.operators, watch.forms, strict=True)):
        if form is not None and form[0] in HALF and len(form[1]) == 5 and name.endswith(("convolution", "conv3d")):
            return handle
    return None


DEFECTS = (
    Defect(
        meets=convolution_without_cudnn,
        what=(
            "torch computes 3D convolutions in 16 bits without the cuDNN that is installed, because versions 9.8 to "
            "9.14 have a defect: that needs several times the memory and time"
        ),
        remedy=(
            "install cuDNN 9.15 or newer, the package nvidia-cudnn-cu12 or nvidia-cudnn-cu13, or a newer build of torch"
        ),
        source="https://github.com/pytorch/pytorch/issues/166643",
    ),
)
"""The known defects of the versions of torch that autofit supports."""


class Versions(Detector):
    """A driver, card or library that does not go with the build of torch, or a defect of one of them."""

    id = "versions"
    about = "versions that do not fit together, or have a known defect"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for what does not fit, and one for each defect that the training meets."""
        device = observation.device
        for each in _misfits(device):
            yield Finding(id=self.id, what=each.what, remedy=each.remedy)
        versions = device.versions()
        for defect in DEFECTS:
            if (handle := defect.meets(observation, versions)) is not None:
                yield Finding(
                    id=self.id,
                    what=defect.what,
                    remedy=defect.remedy,
                    places=(place_of(observation, handle),),
                    evidence=(f"Described in {defect.source}.", "What it costs here was not measured."),
                )


def _misfits(device: Device) -> Iterator[devices.Misfit]:
    """Yields what does not fit on a device; on a host, why torch cannot use an accelerator that the machine has.

    One that could be used is not asked, since that would begin to use it.
    """
    others = (kind() for kind in devices.members() if not kind.is_host and not kind.is_available())
    yield from (found for each in (others if device.is_host else [device]) if (found := each.misfit()) is not None)
