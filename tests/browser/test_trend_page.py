"""The trend page in a real browser: it loads alone, can be used by mouse, touch and keyboard, and is accessible."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.nightly.outputs.trend.page import rendered
from tests.browser.browsing import Browser
from tests.browser.page_checks import (
    WIDTHS,
    check_accessible,
    check_layout,
    check_loads_alone,
    press,
    tap,
    text_sizes_px,
    tip,
    visible,
    without_script,
)
from tests.nightly import samples

pytestmark = pytest.mark.slow

GPT, UNET = "#job-1 .wide svg", "#job-2 .wide svg"
POINTS = "[...document.querySelectorAll(arguments[0] + ' .tr-nights > *')]"


@pytest.fixture(scope="module")
def trend_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each sample history, as a file."""
    folder, year = tmp_path_factory.mktemp("trends"), samples.year()
    month, first, failing = samples.history(30, samples.JOBS[:4]), samples.first_night(), samples.failing()
    texts = {
        "trend-year": rendered(samples.result(year), year),
        "trend-month": rendered(samples.result(month), month),
        "trend-first": rendered(samples.result(first), first),
        "trend-failing": rendered(samples.result(failing), failing),
        "trend-hostile": rendered(samples.hostile_result(), samples.hostile()),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def page(browser: Browser, trend_pages: dict[str, Path]) -> Iterator[Browser]:
    """The page of 20 jobs over a year, in a window of 900 by 900 pixels."""
    browser.open(trend_pages["trend-year"])
    yield browser
    assert browser.messages() == []


def place_of(page: Browser, chart: str, number: int) -> tuple[float, float]:
    """Returns where a night of a chart is in the window; the chart is scrolled to its middle."""
    x, y = page.run(
        f"const point = {POINTS}.at(arguments[1]);"
        "point.ownerSVGElement.scrollIntoView({block: 'center', behavior: 'instant'});"
        "const box = point.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]",
        chart, number,
    )  # fmt: skip
    return x, y


def point_at(page: Browser, x: float, y: float) -> None:
    """Moves the mouse to a place in the window."""
    page.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


@pytest.mark.parametrize("name", ["year", "month", "first", "failing", "hostile"])
def test_a_page_loads_without_a_message_and_without_a_request(
    browser: Browser, trend_pages: dict[str, Path], name: str
) -> None:
    check_loads_alone(browser, trend_pages[f"trend-{name}"])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["year", "month", "hostile"])
def test_screenshots_are_taken_and_no_page_is_wider_than_the_window(
    browser: Browser, trend_pages: dict[str, Path], screenshots: Path, name: str, theme: str, width: int
) -> None:
    picture = screenshots / f"trend-{name}-{theme}-{width}.png"
    check_layout(browser, trend_pages[f"trend-{name}"], picture, width, theme)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_jobs_needs_no_scrolling(browser: Browser, trend_pages: dict[str, Path], width: int) -> None:
    browser.open(trend_pages["trend-year"], width)
    sizes = browser.run(
        "const box = document.querySelector('#answer .scroll'); return [box.scrollWidth, box.clientWidth]"
    )
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("width", WIDTHS)
def test_text_in_charts_is_readable_at_every_width(browser: Browser, trend_pages: dict[str, Path], width: int) -> None:
    browser.open(trend_pages["trend-year"], width)
    heights = text_sizes_px(browser)
    assert len(heights) == 20
    assert min(heights) > 10
    assert max(heights) < 20


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("year", 900), ("month", 360), ("failing", 900), ("hostile", 900)])
def test_axe_finds_no_violation(
    browser: Browser, trend_pages: dict[str, Path], axe: str, name: str, width: int, theme: str
) -> None:
    browser.open(trend_pages[f"trend-{name}"], width, theme=theme)
    browser.run("[...document.querySelectorAll('details')].slice(0, 3).forEach(details => details.open = true)")
    check_accessible(browser, axe)


def test_verdicts_differ_in_shape_and_not_only_in_colour(page: Browser) -> None:
    shapes = page.run(
        "return [...document.querySelectorAll('.tr-index td.v')].map(cell => {"
        "const style = getComputedStyle(cell, '::before');"
        "return [cell.firstChild.textContent, style.clipPath + style.borderRadius + style.borderTopWidth]})"
    )
    of = dict(shapes)
    assert set(of) == {"regression", "does not fit", "error", "cannot compare", "faster", "steady"}
    assert len(set(of.values())) == 6


def test_a_night_has_the_same_mark_in_the_table_as_in_the_key(page: Browser) -> None:
    page.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    for kind in ("regression", "steady", "cannot compare"):
        looks = page.run(
            "const kind = arguments[0]; const look = node => { const style = getComputedStyle(node, '::before');"
            "return style.clipPath + style.borderRadius + style.borderTopWidth + style.backgroundColor };"
            "const named = (name) => [...document.querySelectorAll(name)].find(one => one.textContent === kind);"
            "return [look(named('#job-1 .key li')), look(named('#job-1 .nights td:nth-child(2)'))]",
            kind,
        )
        assert looks[0] == looks[1], kind


def test_pointing_anywhere_above_a_night_shows_it(page: Browser) -> None:
    x, y = place_of(page, GPT, -1)
    for height in (y, y - 60, y + 90):  # at the night, above it, and in the panel of memory
        point_at(page, x, height)
        lines = tip(page).split("\n")
        assert lines[0] == "2026-11-25"
        found = dict(zip(lines[1::2], lines[2::2], strict=False))
        assert found["Verdict"] == "regression"
        assert (found["Tokens/s"], found["Against expected"], found["Peak memory"]) == ("46,670", "-5.9%", "14.87 GiB")
    assert page.run("return document.querySelectorAll('.tr-rule.on').length") == 1
    point_at(page, 5, 5)
    assert tip(page) == ""
    assert page.run("return document.querySelectorAll('.on').length") == 0


def test_every_point_is_the_night_of_its_row(page: Browser) -> None:
    for number in (0, 12, -2):
        point_at(page, 5, 5)
        x, y = place_of(page, UNET, number)
        point_at(page, x, y)
        row = page.run(
            "return [...document.querySelectorAll('#job-2 .nights tbody tr')].reverse().at(arguments[0])"
            ".cells[0].textContent", number,
        )  # fmt: skip
        assert tip(page).split("\n")[0] == row


def test_a_tap_on_a_chart_shows_the_nearest_night_and_one_beside_hides_it(page: Browser) -> None:
    x, y = place_of(page, GPT, -1)
    seen = []
    for place in ((x - 2, y - 40), (450, 4)):
        tap(page, *place)
        seen.append(tip(page))
    assert seen[0].startswith("2026-11-25\n")
    assert seen[1] == ""


def test_the_arrow_keys_move_from_night_to_night(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    stops = page.run(f"return {POINTS}.filter(point => point.tabIndex === 0).length", GPT)
    assert stops == 1  # one stop for the tabulator in each chart: the newest night
    page.run(f"{POINTS}.at(-1).focus()", GPT)
    seen = [tip(page).split("\n")[0]]
    for _ in range(3):
        press(page, Keys.ARROW_LEFT)
        seen.append(tip(page).split("\n")[0])
    assert seen == ["2026-11-25", "2026-11-24", "2026-11-23", "2026-11-22"]
    label = page.run("return document.activeElement.getAttribute('aria-label')")
    assert label.startswith("2026-11-22, Verdict steady, Tokens/s ")
    press(page, Keys.HOME)
    assert tip(page).startswith("2025-11-26 to ")
    press(page, Keys.END)
    assert tip(page).startswith("2026-11-25\n")
    press(page, Keys.ESCAPE)
    assert tip(page) == ""
    about = page.run("return document.querySelector(arguments[0]).getAttribute('aria-label')", GPT)
    assert about.endswith("Use the arrow keys to move from night to night.")


def test_a_chart_a_table_and_the_code_can_be_reached_with_the_tabulator_alone(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    reached = []
    for _ in range(32):
        press(page, Keys.TAB)
        reached.append(
            page.run("const at = document.activeElement; return [at.closest('section')?.id ?? at.id, at.tagName]")
        )
    assert reached[1] == ["theme", "BUTTON"]
    kinds = {tag.lower() for section, tag in reached if section == "job-1"}
    assert kinds == {"button", "pre", "svg", "path", "summary"}


def test_the_commands_are_copied(page: Browser) -> None:
    page.run("window.copied = null; navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.run("document.querySelector('#job-1 .copy').click()")
    assert page.run("return window.copied").splitlines()[1] == "pip install transformers==5.22.1"


def test_the_theme_can_be_changed(page: Browser) -> None:
    page.run("document.querySelector('#theme').click()")
    assert page.run("return getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert page.run("return document.querySelector('#theme').ariaPressed") == "true"


def test_twenty_jobs_of_a_year_are_ready_quickly(page: Browser) -> None:
    took_ms = page.run(
        "const times = performance.getEntriesByType('navigation')[0];"
        "return times.domContentLoadedEventEnd - times.responseEnd"
    )
    assert took_ms < 4000


def test_a_print_is_light_whole_and_without_controls(page: Browser) -> None:
    page.run("document.querySelector('#theme').click()")
    assert page.pdf().startswith(b"%PDF")
    page.media(theme="dark", kind="print")
    assert visible(page, ["#theme", ".copy", "nav", ".narrow", "details"]) == [False] * 5
    assert visible(page, [".tr-index", GPT, "#job-20 .wide svg"]) == [True] * 3
    assert page.run("return getComputedStyle(document.body).color") == "rgb(27, 32, 38)"
    page.media()


def test_hostile_texts_run_nothing(browser: Browser, trend_pages: dict[str, Path]) -> None:
    browser.open(trend_pages["trend-hostile"])
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    browser.run("document.querySelectorAll('.wide .tr-nights > *').forEach(point => point.focus())")
    assert "<script>alert(1)" in tip(browser)
    assert browser.run("return document.querySelectorAll('script, img').length") == 1
    assert browser.messages() == []


def test_without_its_script_the_page_still_shows_everything(
    browser: Browser, trend_pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(without_script(trend_pages["trend-year"], tmp_path))
    browser.run("document.querySelector('#job-1 details').open = true")
    assert visible(browser, [GPT, "#job-1 .nights", ".tr-index"]) == [True] * 3
