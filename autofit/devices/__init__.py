"""Back ends. To add one: write its file, add its line here."""

from autofit.core.errors import UsageError
from autofit.devices.base import Device
from autofit.devices.cpu import Cpu
from autofit.devices.cuda import Cuda

MEMBERS: tuple[type[Device], ...] = (Cuda, Cpu)
"""Every back end, the preferred ones first."""


def choose(name: str | None = None) -> Device:
    """Returns the device called `name` ("cuda", "cuda:1", "cpu"), or the best that is available.

    Raises:
        UsageError: there is no such device here.
    """
    if name is None:
        return next(member() for member in MEMBERS if member.is_available())
    kind, _, index = str(name).partition(":")
    available = {member.type: member for member in MEMBERS if member.is_available()}
    member = available.get(kind)
    if member is None or (index and not (index.isdigit() and int(index) < member.count())):
        raise UsageError(
            f"no device {str(name)!r} here; available: {', '.join(available)}. Leave it out to let autofit choose."
        )
    return member(int(index) if index and not member.is_host else None)
