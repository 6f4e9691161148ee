"""What the tests of every page do and check in a browser: pointing, keys and touch, layout, and accessibility."""

from pathlib import Path

from tests.browser.browsing import Browser

WIDTHS = (360, 900, 1600)
"""Widths of a window in CSS pixels: a phone, half a screen, and a screen."""
AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def tip(page: Browser) -> str:
    """Returns the text of the tooltip; "" if it is hidden."""
    return str(page.run("const tip = document.querySelector('#tip'); return tip.hidden ? '' : tip.innerText"))


def press(page: Browser, *keys: str) -> None:
    """Presses keys on the element that has the focus."""
    from selenium.webdriver import ActionChains  # noqa: PLC0415

    chain = ActionChains(page.driver)
    for key in keys:
        chain.send_keys(key)
    chain.perform()


def tap(page: Browser, x: float, y: float) -> None:
    """Taps a place in the window with a finger."""
    touch = {"touchPoints": [{"x": x, "y": y}]}
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", **touch})
    page.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    page.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def visible(page: Browser, names: list[str]) -> list[bool]:
    """Returns whether the first element of each selector is shown."""
    found = page.run("return arguments[0].map(name => document.querySelector(name).checkVisibility())", names)
    return list(found)


def text_sizes_px(page: Browser) -> list[float]:
    """Returns the size of text in each chart that is shown; in the coordinates of a chart it is 12."""
    found = page.run(
        "return [...document.querySelectorAll('figure svg')].filter(svg => svg.checkVisibility()).map(svg =>"
        " 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"
    )
    return list(found)


def without_script(page: Path, folder: Path) -> Path:
    """Writes a page without its script, and returns the file."""
    plain, text = folder / "plain.html", page.read_text(encoding="utf-8")
    plain.write_text(text[: text.index("<script>")] + text[text.index("</script>") + 9 :], encoding="utf-8")
    return plain


def check_loads_alone(browser: Browser, path: Path) -> None:
    """A page loads, runs its script, says nothing on the console and requests nothing."""
    browser.open(path)
    assert browser.run("return document.readyState") == "complete"
    assert browser.messages() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.run("return document.querySelector('#theme').hidden") is False  # the script ran


def check_layout(browser: Browser, path: Path, picture: Path, width: int, theme: str) -> None:
    """A page is as wide as the window, has the ground of its theme, and its picture is taken."""
    browser.open(path, width, theme=theme)
    browser.picture(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert browser.run("return document.documentElement.scrollWidth") == width
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (theme == "light")


def check_accessible(browser: Browser, axe: str) -> None:
    """The checker of accessibility finds nothing on the page that is shown, and has checked something."""
    browser.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    browser.driver.set_script_timeout(120)
    found = browser.driver.execute_async_script(
        "const done = arguments[1];"
        "axe.run(document, {runOnly: {type: 'tag', values: arguments[0]}}).then(done)",
        AXE_TAGS,
    )  # fmt: skip
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
    assert len(found["passes"]) > 10
