"""For which version of a framework a plan is exported."""

import re
from pathlib import Path

import pytest

from autofit import exporters
from autofit.core.errors import UsageError
from autofit.exporters import base
from autofit.exporters.base import Exporter, TargetVersion, release

CONSTRAINTS = Path(__file__).parents[2] / "scripts" / "constraints.txt"


@pytest.mark.parametrize(
    ("text", "numbers"), [("5.23.0", (5, 23, 0)), ("5.23.0.dev1", (5, 23, 0)), ("2.13.0+cpu", (2, 13, 0)), ("new", ())]
)
def test_the_numbers_of_a_version(text: str, numbers: tuple[int, ...]) -> None:
    assert release(text) == numbers


def of(asked: str | None, installed: str = "") -> TargetVersion:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "installed_version", lambda package: installed)
        return TargetVersion.of(asked, "target", "package", "4.45", "5.23")


@pytest.mark.parametrize(
    ("asked", "installed", "expected"),
    [
        ("4.57", "5.20.0", "4.57"),
        (None, "5.20.0", "5.20.0"),
        (None, "", "5.23"),
        (None, "5.23.4", "5.23.4"),
        ("4.45.2", "", "4.45.2"),
    ],
)
def test_a_version_that_is_asked_for_goes_before_the_installed_one(
    asked: str | None, installed: str, expected: str
) -> None:
    assert of(asked, installed) == TargetVersion(expected)


def test_an_unknown_version_gets_the_keys_of_the_nearest_and_a_warning() -> None:
    found = of("6.1")
    assert found.text == "5.23"
    assert found.warnings == (
        "package 6.1 is not known: expected 4.45 to 5.23. The keys are those of 5.23: check them",
    )
    assert of("4.2").text == "4.45"
    assert "package 7.0, which is installed, is not known" in of(None, "7.0").warnings[0]


PINNED = dict(re.findall(r"^([\w-]+)==([\d.]+)", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("exporter", [each for each in exporters.BUILT_IN if each.package in PINNED])
def test_the_versions_that_the_examples_and_tests_install_are_known(exporter: type[Exporter]) -> None:
    package = exporter.package
    assert TargetVersion.of(PINNED[package], exporter.name, package, exporter.oldest, exporter.newest).warnings == ()


def test_a_version_is_compared_by_its_numbers() -> None:
    version = TargetVersion("5.9.0")
    assert version < "5.23"
    assert version >= "5.9"
    assert not version >= "5.10"


def test_what_is_not_a_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"found the version 'latest' for target; expected one of package, such as 5"):
        of("latest")
    with pytest.raises(UsageError, match="depends on no version"):
        TargetVersion.of("1.0", "python", "", "", "")


def test_the_version_of_an_installed_package_is_read_without_loading_it() -> None:
    found = TargetVersion.of(None, "target", "optuna", "5.0", "5.99")
    assert found >= "5.0"
    assert TargetVersion.of(None, "target", "no-such-package", "5.0", "5.99").text == "5.99"
