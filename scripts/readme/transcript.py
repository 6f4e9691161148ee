"""The answer of a run, as today's code prints it from the records, and its place in README.md."""

from autofit.reports.canvas import Canvas
from autofit.reports.summary import brief
from scripts.readme.records import PLAN, Records

COLUMNS, LINES = 100, 15
"""Width of the terminal, and number of lines of the answer that are shown."""
BEGIN, END = "<!-- transcript: made by `python -m scripts.readme render` -->", "<!-- end of the transcript -->"


def answer(records: Records) -> list[str]:
    """Returns what the run printed last on a terminal of `COLUMNS` columns."""
    return brief(records.answer, Canvas(width=COLUMNS, blocks=True), PLAN).splitlines()


def block(records: Records) -> str:
    """Returns the part of README.md from `BEGIN` to `END`: the first lines of the answer."""
    return "\n".join([BEGIN, "```text", "$ scripts/demo", "...", *answer(records)[:LINES], "...", "```", END])


def inserted(readme: str, text: str) -> str:
    """Returns README.md with `text` in place of its part from `BEGIN` to `END`.

    Raises:
        ValueError: it does not have this part exactly once.
    """
    before, found, rest = readme.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended) or BEGIN in after:
        raise ValueError(f"README.md has no single part between {BEGIN!r} and {END!r}; expected exactly one")
    return f"{before}{text}{after}"
