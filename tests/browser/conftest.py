"""A browser for the tests of each file here; without one they are skipped, each by name with the reason."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.reports.page import render
from tests.browser.browsing import Browser, axe_source, missing_browser, started
from tests.reports import samples

SCREENSHOTS = "AUTOFIT_SCREENSHOTS"
"""Environment variable that names the folder for screenshots; a temporary folder of pytest's if it is not set."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one file. It ends with its tests: other files watch the children of their process."""
    reason = missing_browser()
    if reason:
        pytest.skip(reason)
    with started() as found:
        yield found


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    try:
        return axe_source()
    except FileNotFoundError as error:
        pytest.skip(f"axe-core is not available: {error}")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sample, as a file."""
    folder = tmp_path_factory.mktemp("pages")
    made = {name: folder / f"{name}.html" for name in samples.ALL}
    for name, path in made.items():
        path.write_text(render(samples.ALL[name]()), encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are written."""
    named = os.environ.get(SCREENSHOTS)
    folder = Path(named) if named else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
