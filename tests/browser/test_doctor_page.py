"""The page of a diagnosis in a real browser: it loads alone, nothing is cut off, and it is accessible."""

from pathlib import Path

import pytest

from autofit.doctor.diagnosis import Diagnosis, Finding, Size, Unchecked
from autofit.doctor.page import render
from tests.browser.browsing import Browser
from tests.browser.page_checks import (
    WIDTHS,
    check_accessible,
    check_layout,
    check_loads_alone,
    text_sizes_px,
    visible,
    without_script,
)
from tests.doctor.cases import diagnosis_of

pytestmark = pytest.mark.slow

MEASURED = Finding(
    id="heavy-module",
    what='12 NewGELUActivation, such as transformer.h.0.mlp.act, compute F.gelu(x, approximate="tanh") and save more',
    remedy='use F.gelu(x, approximate="tanh")',
    size=Size(peak_bytes=2**21, basis="measured"),
    confirmed='12 NewGELUActivation as F.gelu(x, approximate="tanh")',
)
LONG = Finding(
    id="sync",
    what=f"the host waits for the device at {'a_folder_with_a_long_name/' * 12}train.py:16 <b>",
    remedy="keep the value on the device",
    evidence=("How long the host waits was not measured.",),
)
MINOR = MEASURED.model_copy(update={"id": "float64", "minor": True, "confirmed": ""})


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    """A diagnosis with a finding that was observed, and with others of each form."""
    seen = diagnosis_of("held outputs", False)
    return seen.model_copy(
        update={
            "findings": (*seen.findings, MEASURED, LONG, MINOR),
            "unchecked": (Unchecked(id="loader", reason="no further steps were run"),),
            "notes": ("compiled code is observed without being compiled",),
        }
    )


@pytest.fixture(scope="module")
def path(found: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("doctor") / "doctor.html"
    made.write_text(render(found), encoding="utf-8")
    return made


def test_it_loads_alone(browser: Browser, path: Path) -> None:
    check_loads_alone(browser, path)


def test_it_shows_each_finding_once_in_order(browser: Browser, path: Path, found: Diagnosis) -> None:
    browser.open(path)
    heads = browser.run("return [...document.querySelectorAll('h3')].map(node => node.textContent)")
    shown = [finding.id for finding in found.findings if not finding.minor]
    minor = [finding.id for finding in found.findings if finding.minor]
    wanted = [f"{number}. {name}" for names in (shown, minor) for number, name in enumerate(names, 1)]
    assert [head.partition(":")[0] for head in heads] == wanted
    assert any("2 MiB of the peak" in head and "measured" in head for head in heads)
    assert "train.py:16 <b>" in browser.run("return document.body.innerText").replace("\u200b", "")


def test_without_a_script_everything_is_there(browser: Browser, path: Path, tmp_path: Path) -> None:
    browser.open(without_script(path, tmp_path))
    assert visible(browser, ["h3", "figure svg", "#checked table"]) == [True, True, True]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_is_wider_than_the_window(
    browser: Browser, path: Path, screenshots: Path, theme: str, width: int
) -> None:
    check_layout(browser, path, screenshots / f"doctor-{theme}-{width}.png", width, theme)


@pytest.mark.parametrize("width", WIDTHS)
def test_text_in_charts_is_readable_at_every_width(browser: Browser, path: Path, width: int) -> None:
    browser.open(path, width)
    heights = text_sizes_px(browser)
    assert len(heights) == 2
    assert min(heights) > 10
    assert max(heights) < 20


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS[:2])
def test_axe_finds_no_violation(browser: Browser, path: Path, axe: str, width: int, theme: str) -> None:
    browser.open(path, width, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    check_accessible(browser, axe)
