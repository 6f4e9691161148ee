"""Code blocks of a Markdown file."""

import re


def code_blocks(text: str, language: str) -> list[str]:
    """Returns the fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
