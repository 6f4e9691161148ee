"""A browser that tests drive, and what it said while it showed a page."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
)  # fmt: skip
AXE = "axe-core@4.14.1"
"""The checker of accessibility, from npm. It is 650 kB and installed when a test first needs it."""
AXE_TIMEOUT_S = 120.0


def missing_browser() -> str:
    """Returns why no browser can be driven here; "" if one can."""
    try:
        import selenium  # noqa: F401, PLC0415
    except ImportError:
        return "selenium is not installed (pip install '.[browser]')"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (on Debian: scripts/_browser.sh)"
    return ""


def axe_source() -> str:
    """Returns the source of axe-core, which is installed by npm into a cache when it is not there.

    Raises:
        FileNotFoundError: npm is not installed, or cannot reach its registry.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autofit-tests" / AXE
    found = cache / "node_modules" / "axe-core" / "axe.min.js"
    if not found.exists():
        if shutil.which("npm") is None:
            raise FileNotFoundError("npm is not installed")
        cache.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(cache), AXE]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=AXE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise FileNotFoundError("npm took too long") from None
        if done.returncode:
            raise FileNotFoundError(f"npm cannot install {AXE}: {done.stderr.strip()[-200:]}")
    return found.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Browser:
    """A running browser.

    Attributes:
        driver: selenium's.
    """

    driver: Any

    def open(self, path: Path, width: int = 900, height: int = 900, theme: str = "light") -> None:
        """Shows a file in a window of a size and with a theme of the system, and forgets what the browser said."""
        self.size(width, height)
        self.media(theme=theme)
        self.messages()
        self.requests()
        self.driver.get(path.as_uri())

    def size(self, width: int, height: int) -> None:
        """Sets the size of the window in CSS pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, theme: str = "light", kind: str = "") -> None:
        """Sets the theme of the system, and whether the page is shown as on paper ("print")."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def run(self, script: str, *arguments: Any) -> Any:
        """Returns what a script gives."""
        return self.driver.execute_script(script, *arguments)

    def messages(self) -> list[str]:
        """Returns what the browser's console said since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Returns the addresses that were requested since the last call, without those inside the page itself."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith("data:")]

    def picture(self, path: Path) -> None:
        """Writes a picture of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.run("return innerWidth"), "height": height, "scale": 1}
        options = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))

    def pdf(self) -> bytes:
        """Returns the page as it is printed."""
        found = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        return base64.b64decode(found["data"])


@contextmanager
def started() -> Iterator[Browser]:
    """Starts a browser with a profile of its own, and ends it."""
    from selenium import webdriver  # noqa: PLC0415

    with TemporaryDirectory(prefix="autofit-browser-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for switch in (*SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
