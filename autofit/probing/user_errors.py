"""Errors of the user's own code before the first probe, raised as such."""

from collections.abc import Iterator
from contextlib import contextmanager

from autofit.core.errors import AutofitError, DevicePoisoned, NothingFits, RestoreError, UserCodeError
from autofit.core.outcome import Status
from autofit.devices.base import Device
from autofit.failures.classify import classify
from autofit.failures.evidence import collect


@contextmanager
def as_users_errors(device: Device) -> Iterator[None]:
    """Turns any error that the user's objects raise inside into an error that says so.

    Raises:
        UserCodeError: the user's objects raised an error.
        NothingFits: they ran out of memory.
        DevicePoisoned: the device no longer responds.
    """
    try:
        with as_poison(device):
            yield
    except AutofitError:
        raise
    except Exception as error:
        evidence = collect(error)
        failure = classify(evidence, device_is_host=device.is_host)
        if failure.status.does_not_fit:
            raise NothingFits(
                f"not even two samples fit: {failure.reason}. Give more memory, or use a smaller model or shorter "
                "samples."
            ) from error
        where = " on the CPU" if device.is_host else ""
        raise UserCodeError(
            f"your code failed before the first probe: {failure.reason}. Run one training step of your own{where} to "
            "reproduce it, fix it, then run this again.",
            evidence.traceback_text,
        ) from error


@contextmanager
def as_poison(device: Device) -> Iterator[None]:
    """Turns whatever fails inside because the device no longer responds into an error that says so.

    A `RestoreError` becomes a note on it, which lists what was lost.

    Raises:
        DevicePoisoned: the device no longer responds.
    """
    try:
        yield
    except DevicePoisoned:
        raise
    except Exception as error:
        if (poison := poison_of(error, device)) is None:
            raise
        poisoned = DevicePoisoned(
            f"the device answers every call with an error: {poison}. Run one training step of your own in a new "
            "process. If that works, your code poisoned the device in this process; if not, reset the device."
        )
        if isinstance(error, RestoreError):
            poisoned.add_note(str(error))
        raise poisoned from error


def poison_of(error: Exception, device: Device) -> str | None:
    """Returns why the device no longer responds after an error, or None. Not every error says so: it is asked."""
    try:
        device.synchronize()
    except RuntimeError as answer:
        return str(answer).strip().partition("\n")[0]
    failure = classify(collect(error), device_is_host=device.is_host)
    return failure.reason if failure.status is Status.POISONED else None
