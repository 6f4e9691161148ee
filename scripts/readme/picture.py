"""The picture of a report: taken of its HTML page by a browser, and marked with the digest of that page."""

import base64
import hashlib
import io
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

PICTURE = Path(__file__).resolve().parent / "report.png"
WIDTH, SCALE = 1000, 1.6
"""Width of the page in CSS pixels, and pixels of the picture for each."""
LAST = "#front figure, #curves figure"
"""The picture ends below the last element of this CSS selector."""
MARGIN_PIXELS = 12
MOST_BYTES = 250_000
KEYWORD = b"page-sha256"
"""Keyword of the text chunk with the digest (PNG specification, 11.3.3.2)."""
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
_HEIGHT = (
    "window.scrollTo(0, 0);"
    "return [...document.querySelectorAll(arguments[0])].at(-1).getBoundingClientRect().bottom"
)  # fmt: skip


class NoPictureError(Exception):
    """The picture cannot be made. The message says what is missing."""


def digest(page: str) -> str:
    """Returns the SHA-256 of a page, in hexadecimal."""
    return hashlib.sha256(page.encode()).hexdigest()


def take(page: str) -> bytes:
    """Returns the picture of the upper part of a page, as a PNG with the page's digest.

    Raises:
        NoPictureError: chromium, chromedriver, selenium or Pillow is not installed, or the picture is too large.
    """
    found = marked(_with_palette(_photographed(page)), digest(page))
    if len(found) > MOST_BYTES:
        raise NoPictureError(f"the picture has {len(found):,} bytes; expected at most {MOST_BYTES:,}")
    return found


def digest_in(picture: bytes) -> str:
    """Returns the digest of the page that a picture was taken of; "" if it has none."""
    texts = (data.partition(b"\0") for kind, data in _chunks(picture) if kind == b"tEXt")
    return next((text.decode() for keyword, _, text in texts if keyword == KEYWORD), "")


def size_of(picture: bytes) -> tuple[int, int]:
    """Returns width and height of a picture in pixels."""
    width, height = struct.unpack(">II", next(data for kind, data in _chunks(picture) if kind == b"IHDR")[:8])
    return width, height


def _photographed(page: str) -> bytes:
    """Returns what a browser shows of the page, in its light theme."""
    try:
        from selenium import webdriver  # noqa: PLC0415  # only this function needs it
    except ImportError:
        raise NoPictureError("selenium is not installed; run pip install '.[browser]' pillow") from None
    programs = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise NoPictureError(f"{' and '.join(missing)} not found; on Debian, run scripts/_browser.sh")
    with TemporaryDirectory(prefix="autofit-picture-", ignore_cleanup_errors=True) as name:
        path = Path(name) / "report.html"
        path.write_text(page, encoding="utf-8")
        options = webdriver.ChromeOptions()
        options.binary_location = programs["chromium"]
        for switch in (*_SWITCHES, f"--user-data-dir={name}/profile"):
            options.add_argument(switch)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs["chromedriver"]))
        try:
            metrics = {"width": WIDTH, "height": WIDTH, "deviceScaleFactor": SCALE, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            light = [{"name": "prefers-color-scheme", "value": "light"}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": light})
            driver.get(path.as_uri())
            height = driver.execute_script(_HEIGHT, LAST) + MARGIN_PIXELS
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            wanted = {"format": "png", "captureBeyondViewport": True, "clip": clip}
            return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", wanted)["data"])
        finally:
            driver.quit()


def _with_palette(picture: bytes) -> bytes:
    """Returns a picture with at most 256 colours, which a page of flat colours does not show."""
    try:
        from PIL import Image  # noqa: PLC0415  # only this function needs it
    except ImportError:
        raise NoPictureError("Pillow is not installed; run pip install pillow") from None
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    written = io.BytesIO()
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return written.getvalue()


def marked(picture: bytes, text: str) -> bytes:
    """Returns a PNG with the digest as a text chunk behind its header."""
    data = b"tEXt" + KEYWORD + b"\0" + text.encode()
    chunk = struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))
    end = len(_SIGNATURE) + 4 + 4 + 13 + 4  # length, type, data and checksum of IHDR
    return picture[:end] + chunk + picture[end:]


def _chunks(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields type and data of each chunk of a PNG.

    Raises:
        ValueError: it is not a PNG.
    """
    if not picture.startswith(_SIGNATURE):
        raise ValueError(f"found {picture[:8]!r}; expected the signature of a PNG file")
    at = len(_SIGNATURE)
    while at < len(picture):
        (count,) = struct.unpack_from(">I", picture, at)
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + count]
        at += 12 + count
