"""Back ends. To add one, write its file and add a line here, or add an entry point in another package."""

import re
from functools import cache

from autofit.core.errors import DeviceMissing
from autofit.devices.base import Device, Misfit
from autofit.devices.cpu import Cpu
from autofit.devices.cuda import Cuda, cuda_capabilities, gpu_count, gpu_in_use, known_gpu_count
from autofit.devices.host_memory import available as available_host_bytes
from autofit.plugins import plugins

_NAME = re.compile(r"([a-z]+)(?::(0|[1-9][0-9]*))?")
"""Pattern of the device names that torch accepts."""
BUILT_IN: tuple[type[Device], ...] = (Cuda, Cpu)
"""The back ends of autofit itself. The CPU is last, since it is always available."""


@cache
def members() -> tuple[type[Device], ...]:
    """Returns every back end, in order of preference.

    Back ends of other packages are loaded on the first call.
    """
    return (*BUILT_IN[:-1], *plugins("devices", Device, BUILT_IN, "type"), BUILT_IN[-1])


def host() -> Device:
    """Returns the device that is this machine's own processor and memory."""
    return BUILT_IN[-1]()


def choose(name: str | None = None) -> Device:
    """Returns the device called `name` ("cuda", "cuda:1", "cpu"), or the best that is available.

    Raises:
        DeviceMissing: the device is not available on this machine.
    """
    if name is None:
        return next(member() for member in members() if member.is_available())
    available = {member.type: member for member in members() if member.is_available()}
    found = _NAME.fullmatch(str(name))
    kind, index = found.groups() if found else (None, None)
    member = available.get(kind or "")
    if member is None or (index is not None and int(index) >= member.count()):
        shown = ", ".join(
            kind if member.count() == 1 else f"{kind}:0 to {kind}:{member.count() - 1}"
            for kind, member in available.items()
        )
        raise DeviceMissing(f"no device {str(name)!r} here; available: {shown}. Leave it out to let autofit choose.")
    return member(int(index) if index is not None and not member.is_host else None)


__all__ = [
    "BUILT_IN",
    "Device",
    "Misfit",
    "available_host_bytes",
    "choose",
    "cuda_capabilities",
    "gpu_count",
    "gpu_in_use",
    "host",
    "known_gpu_count",
    "members",
]
