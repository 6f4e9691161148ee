"""A text of XML as a tree."""

from typing import Any
from xml.dom.minidom import parseString


def tree(text: str) -> Any:
    """Returns the root element. Untyped, because every node of a `minidom` tree may be of six kinds.

    Raises:
        ExpatError: the text is not well-formed.
    """
    return parseString(text.encode()).documentElement
