"""TargetVersion: for which version of a framework a plan is exported."""

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Self

from autofit.core.errors import UsageError
from autofit.core.printable import one_line

_RELEASE = re.compile(r"\d{1,6}(\.\d{1,6})*")


@dataclass(frozen=True, slots=True)
class TargetVersion:
    """For which version of a framework a plan is exported.

    Attributes:
        text: the version whose keys are written, such as "5.23.0"; "" if the keys depend on no version.
        warnings: a note if another version was asked for, or is installed, whose keys are not known.
    """

    text: str = ""
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: str | None, target: str, package: str, oldest: str, newest: str) -> Self:
        """Returns the version to export for: the one asked for, or else the installed one, or else the newest known.

        A version beyond the known ones gets the keys of the nearest of them, and a warning. Nothing is imported.

        Args:
            asked: the version that the user asked for; None if there is none.
            target: name of the exporter.
            package: distribution of the target; "" if its keys depend on no version.
            oldest: oldest known version.
            newest: newest known version.

        Raises:
            UsageError: `asked` is not a version, or the keys depend on no version.
        """
        if not package:
            if asked is not None:
                raise UsageError(
                    f"found the version {one_line(asked)!r} for {target}, whose export depends on no version; expected "
                    "none. Leave it out."
                )
            return cls()
        if asked is not None and not _RELEASE.match(asked):
            raise UsageError(
                f"found the version {one_line(asked)!r} for {target}; expected one of {package}, such as {newest}."
            )
        found = asked or _installed(package) or newest
        nearest = oldest if release(found) < release(oldest) else newest if release(found) > release(newest) else found
        if nearest == found or release(found)[: len(release(newest))] == release(newest):
            return cls(found)
        what = f"{package} {one_line(found)}" + ("" if asked else ", which is installed,")
        return cls(
            nearest,
            (f"{what} is not known: expected {oldest} to {newest}. The keys are those of {nearest}: check them",),
        )

    def __ge__(self, other: str) -> bool:
        """Returns whether the version is at least another one, such as "5.23"."""
        return release(self.text) >= release(other)

    def __lt__(self, other: str) -> bool:
        """Returns whether the version is below another one."""
        return not self >= other


def release(version: str) -> tuple[int, ...]:
    """Returns the numbers of a version: (5, 23, 0) for "5.23.0.dev1"."""
    match = _RELEASE.match(version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _installed(package: str) -> str:
    """Returns the version of an installed distribution; "" if it is not installed."""
    try:
        found = installed_version(package)
    except PackageNotFoundError:
        return ""
    return found if _RELEASE.match(found) else ""
