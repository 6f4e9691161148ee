"""Checks of every page that autofit makes: well formed, small, and closed to everything from outside."""

import base64
import hashlib
import re
from html.parser import HTMLParser

MOST_BYTES = 500_000
VOID = {"meta", "link", "input", "br", "wbr", "circle", "path", "rect", "line"}


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, and whether each one is closed in its place."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.wrong = list[str](), list[str]()
        self.elements = list[tuple[str, dict[str, str | None]]]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def check_well_formed_and_small(page: str) -> None:
    """Every element is closed in its place, no name is given twice, and the page is smaller than `MOST_BYTES`."""
    reader = Reader(page)
    assert (reader.open, reader.wrong) == ([], [])
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len(page.encode()) < MOST_BYTES


def check_asks_for_nothing(page: str) -> None:
    """No element loads or sends anything, and the only script and style are those of the page."""
    for tag, attributes in Reader(page).elements:
        assert tag not in {"iframe", "object", "embed", "img", "image", "use", "base", "form", "foreignobject"}
        assert not [key for key in attributes if key.startswith("on") or key in {"style", "src", "srcset", "action"}]
        link = attributes.get("href") or ""
        assert link.startswith(("#", "data:image/svg+xml,")) or not link
    assert page.count("<script>") == page.count("</script>") == 1
    assert page.count("<style>") == 1


def check_policy(page: str) -> None:
    """The policy comes before the style, and admits the style and the script of the page and nothing else."""
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    for tag in ("style", "script"):
        text = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text.group(1).encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy.group(1)
    assert policy.group(1).startswith("default-src 'none'; ")
    assert "unsafe" not in policy.group(1)
    assert page.index("Content-Security-Policy") < page.index("<style>")
