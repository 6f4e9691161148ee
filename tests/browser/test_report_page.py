"""The report in a real browser: it loads alone, can be used by mouse, touch and keyboard, and is accessible."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.reports.page import render
from autofit.reports.svg import CHARTS
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
from tests.reports import samples

pytestmark = pytest.mark.slow

ROWS = "[...document.querySelectorAll('#plans-table tbody tr')]"
TABLE = "document.querySelector('.plans')"
LINES_OF_A_PLAN = """
const node = document.querySelector("tr:not(.baseline) .plan"), lines = [];
const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
let top = null;
while (walker.nextNode()) {
  const text = walker.currentNode;
  for (let at = 0; at < text.length; at++) {
    const range = document.createRange();
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const letter = text.data[at], box = range.getBoundingClientRect();
    if (letter.trim() === "") continue;
    if (top === null || box.top > top + 4) lines.push("");
    top = box.top;
    lines[lines.length - 1] += letter;
  }
}
return lines;
"""
"""Script that returns the lines of the first plan that is not the baseline, as they are laid out, without spaces."""
POINT = "figure .af-pt[data-r='1']"


@pytest.fixture
def page(browser: Browser, pages: dict[str, Path]) -> Iterator[Browser]:
    """The typical report, in a window of 900 by 900 pixels."""
    browser.open(pages["typical"])
    yield browser
    assert browser.messages() == []


def shown_ranks(page: Browser) -> list[int]:
    """Returns the ranks of the rows that are shown, in order."""
    found = page.run(f"return {ROWS}.filter(row => row.offsetParent).map(row => row.id.slice(1))")
    return [int(rank) for rank in found]


def element(page: Browser, selector: str) -> object:
    """Returns an element, scrolled to the middle of the window."""
    return page.run(
        "const found = document.querySelector(arguments[0]);"
        "found.scrollIntoView({block: 'center', behavior: 'instant'}); return found",
        selector,
    )


@pytest.mark.parametrize("name", samples.ALL)
def test_a_page_loads_without_a_message_and_without_a_request(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    check_loads_alone(browser, pages[name])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["typical", "infeasible", "hostile"])
def test_screenshots_are_taken_and_no_page_is_wider_than_the_window(
    browser: Browser, pages: dict[str, Path], screenshots: Path, name: str, theme: str, width: int
) -> None:
    check_layout(browser, pages[name], screenshots / f"{name}-{theme}-{width}.png", width, theme)


def test_the_table_of_plans_fits_at_900_pixels_and_words_break_where_a_name_has_parts(
    browser: Browser, tmp_path: Path
) -> None:
    report = samples.typical()
    name = "memory_format=channels_last, optimizer_implementation=foreach, checkpointed_blocks=10"
    rows = tuple(
        row.model_copy(update={"combination": name, "earlier": row.rank % 2 == 0, "duration_s": 61.0})
        for row in report.rows
    )
    path = tmp_path / "long.html"
    path.write_text(render(report.model_copy(update={"rows": rows})), encoding="utf-8")
    browser.open(path, 885)  # what a scroll bar leaves of 900
    assert browser.run(f"return {TABLE}.scrollWidth") == browser.run(f"return {TABLE}.clientWidth")
    browser.size(360, 900)
    lines = browser.run(LINES_OF_A_PLAN)
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")
    assert [line for line in lines if line[-1] not in "=_," and line != lines[-1]] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_text_in_charts_is_readable_at_every_width(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["typical"], width)
    heights = text_sizes_px(browser)
    assert len(heights) == len(CHARTS)
    assert min(heights) > 10
    assert max(heights) < 20


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("typical", 900), ("typical", 360), ("infeasible", 900), ("bare", 900)])
def test_axe_finds_no_violation(
    browser: Browser, pages: dict[str, Path], axe: str, name: str, width: int, theme: str
) -> None:
    browser.open(pages[name], width, theme=theme)
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    check_accessible(browser, axe)


def test_the_theme_can_be_changed_and_says_its_state(page: Browser) -> None:
    from selenium.webdriver.common.by import By  # noqa: PLC0415

    button = page.driver.find_element(By.ID, "theme")
    states = []
    for _ in range(3):
        colour = page.run("return getComputedStyle(document.body).backgroundColor")
        states.append((button.get_attribute("aria-pressed"), colour == "rgb(255, 255, 255)"))
        button.click()
    assert states == [("false", True), ("true", False), ("false", True)]


def test_pointing_at_a_point_shows_its_plan(page: Browser) -> None:
    from selenium.webdriver import ActionChains  # noqa: PLC0415

    ActionChains(page.driver).move_to_element(element(page, POINT)).perform()
    assert "micro batch 128 × 2: precision=bf16, compile=default, checkpointing=blocks (recommended)" in tip(page)
    assert "15.12 GiB" in tip(page)
    assert page.run("return document.querySelectorAll('figure .af-pt.on').length") > 1  # in the other charts too
    ActionChains(page.driver).move_to_element(element(page, "#caveats")).perform()
    assert tip(page) == ""


def test_a_tap_on_a_point_shows_its_plan_and_one_beside_hides_it(page: Browser) -> None:
    element(page, POINT)
    place = (
        "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
        "return [box.left + box.width / 2 + arguments[1], box.top + box.height / 2]"
    )
    seen = []
    for beside in (6, 150):
        tap(page, *page.run(place, POINT, beside))
        seen.append(tip(page))
    assert "128 × 2" in seen[0]
    assert seen[1] == ""


def test_the_arrow_keys_move_from_plan_to_plan_and_escape_hides_the_plan(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    stops = page.run("return document.querySelectorAll('#front figure [tabindex=\"0\"]').length")
    assert stops == 1  # one stop for the tabulator in each chart
    page.run("document.querySelector('#front figure [tabindex=\"0\"]').focus()")
    seen = [tip(page)]
    for _ in range(3):
        press(page, Keys.ARROW_RIGHT)
        seen.append(tip(page))
    assert len(set(seen)) == 4
    assert all(seen)
    label = page.run("return document.activeElement.getAttribute('aria-label')")
    assert "Peak" in label
    press(page, Keys.ESCAPE)
    assert tip(page) == ""


def test_a_chart_can_be_reached_with_the_tabulator_alone(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    reached = []
    for _ in range(40):
        press(page, Keys.TAB)
        reached.append(page.run("return document.activeElement.closest('section')?.id ?? document.activeElement.id"))
    assert reached[:2] == ["", "theme"]  # the link to the answer, then the button
    assert {"front", "curves", "race", "plans"} <= set(reached)


def test_every_column_can_be_sorted_both_ways(page: Browser) -> None:
    heads = page.run("return [...document.querySelectorAll('#plans-table thead button')].map(b => b.textContent)")
    for place, name in enumerate(heads):
        orders = []
        first = name == "#" or name.startswith(("Samples/s", "Gain"))  # the best first; the page is sorted by "#"
        for expected in ("descending", "ascending") if first else ("ascending", "descending"):
            page.run("document.querySelectorAll('#plans-table thead button')[arguments[0]].click()", place)
            states = page.run("return [...document.querySelectorAll('[aria-sort]')].map(head => head.ariaSort)")
            assert states == [expected]
            orders.append(shown_ranks(page))
        assert sorted(orders[0]) == sorted(orders[1])


def test_sorting_by_peak_is_by_bytes_and_plans_without_one_come_last(page: Browser) -> None:
    report = samples.typical()
    page.run("document.querySelectorAll('#plans-table thead button')[5].click()")
    peaks = [report.row(rank).peak_bytes for rank in shown_ranks(page)]
    measured = [peak for peak in peaks if peak is not None]
    assert measured == sorted(measured)
    assert peaks[len(measured) :] == [None] * (len(peaks) - len(measured))
    page.run("document.querySelectorAll('#plans-table thead button')[5].click()")
    assert [report.row(rank).peak_bytes for rank in shown_ranks(page)][: len(measured)] == measured[::-1]


def test_a_header_is_sorted_by_the_keyboard(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys  # noqa: PLC0415

    page.run("document.querySelectorAll('#plans-table thead button')[4].focus()")
    press(page, Keys.ENTER)
    assert page.run("return document.activeElement.closest('th').ariaSort") == "descending"
    press(page, Keys.SPACE)
    assert page.run("return document.activeElement.closest('th').ariaSort") == "ascending"


def test_rows_are_filtered_by_words_and_by_status_and_counted(page: Browser) -> None:
    page.run("document.querySelector('#filter').focus()")
    press(page, "blocks bf16")
    report = samples.typical()
    names = ("blocks", "bf16")
    assert shown_ranks(page) == [row.rank for row in report.rows if all(name in row.combination for name in names)]
    assert page.run("return document.querySelector('#shown').value") == "5 of 16 plans"
    page.run(
        "const filter = document.querySelector('#filter'); filter.value = ''; filter.dispatchEvent(new Event('input'));"
        "const status = document.querySelector('#status'); status.value = 'out of memory';"
        "status.dispatchEvent(new Event('change'))"
    )
    assert shown_ranks(page) == [row.rank for row in report.rows if row.status == "out of memory"]


def test_five_hundred_plans_are_sorted_and_filtered_quickly(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["large"])
    assert len(shown_ranks(browser)) == 500
    took_ms = browser.run(
        "const start = performance.now(); document.querySelectorAll('#plans-table thead button')[5].click();"
        "document.body.offsetHeight; return performance.now() - start"
    )
    assert took_ms < 1500


def test_code_is_copied(page: Browser) -> None:
    page.run("window.copied = null; navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.run("document.querySelector('.copy').click()")
    assert page.run("return window.copied") == samples.typical().apply_code.strip()
    assert page.run("return document.querySelector('.copy').textContent") == "Copied"


def test_without_a_clipboard_the_code_is_selected(page: Browser) -> None:
    page.run("navigator.clipboard.writeText = async () => { throw new Error('denied'); }")
    page.run("document.querySelector('.copy').click()")
    assert page.run("return getSelection().toString()").strip() == samples.typical().apply_code.strip()


def test_a_print_is_light_whole_and_without_controls(page: Browser) -> None:
    page.run("document.querySelector('#theme').click(); const filter = document.querySelector('#filter');"
             "filter.value = 'fp16'; filter.dispatchEvent(new Event('input'))")  # fmt: skip
    page.run("window.seen = 0; addEventListener('beforeprint', () => {"
             f"window.seen = {ROWS}.filter(row => !row.hidden).length }})")  # fmt: skip
    printed = page.pdf()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6
    assert page.run("return window.seen") == 16
    assert len(shown_ranks(page)) == 0  # the filter is back
    page.media(theme="dark", kind="print")
    names = ["#theme", ".controls", ".copy", "nav"]
    assert visible(page, names) == [False] * 4
    assert page.run("return getComputedStyle(document.body).color") == "rgb(27, 32, 38)"
    assert page.run("return getComputedStyle(document.querySelector('.plans')).maxHeight") == "none"
    size = "const node = document.querySelector(arguments[0]); return parseFloat(getComputedStyle(node).fontSize)"
    assert page.run(size, ".plans .why") <= page.run(size, ".plans .plan")
    page.media()


def test_a_print_has_the_folded_rows_and_folds_them_again(browser: Browser, tmp_path: Path) -> None:
    one = samples.typical().left_out[0]
    left_out = tuple(one.model_copy(update={"label": f"combination {number}"}) for number in range(23))
    path = tmp_path / "folded.html"
    path.write_text(render(samples.typical().model_copy(update={"left_out": left_out})), encoding="utf-8")
    browser.open(path)
    browser.run("window.open_ = -1; addEventListener('beforeprint', () => {"
                "window.open_ = document.querySelectorAll('details.more[open]').length })")  # fmt: skip
    browser.pdf()
    assert browser.run("return window.open_") == 1
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0
    browser.media(kind="print")  # as where no script runs: the rows are folded, and the print says so
    assert browser.run("return document.querySelector('details.more').innerText") == (
        "13 more, folded: open this list on the page to print it"
    )
    browser.run("document.querySelector('details.more').open = true")
    printed = browser.run("return document.querySelector('details.more').innerText")
    assert "combination 22" in printed
    assert "folded" not in printed
    browser.media()


def test_hostile_texts_run_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"])
    browser.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    browser.run("document.querySelectorAll('figure .af-pt[tabindex]').forEach(point => point.focus())")
    assert "<script>alert(1)" in tip(browser)
    assert browser.run("return document.querySelectorAll('script, img').length") == 1
    assert browser.messages() == []


def test_the_policy_stops_a_script_that_was_put_in(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.html"
    text = pages["typical"].read_text(encoding="utf-8")
    added = "<script>window.ran = true</script><img src='https://example.invalid/x.png' onerror='window.ran = true'>"
    damaged.write_text(text.replace("</main>", f"{added}</main>"), encoding="utf-8")
    browser.open(damaged)
    assert browser.run("return window.ran ?? null") is None
    assert len([message for message in browser.messages() if "Content Security Policy" in message]) >= 2


def test_without_its_script_the_page_still_shows_everything(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(without_script(pages["typical"], tmp_path))
    assert len(shown_ranks(browser)) == 16
    assert browser.run("return document.querySelector('.controls').checkVisibility()") is False
