"""The transcript of a run, as today's code prints it from the records, and its place in README.md."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from autofit.reports.canvas import Canvas
from autofit.reports.summary import brief
from autofit.trackers.search_state import SearchState, Yardstick
from scripts.readme.records import PLAN, Records

COLUMNS = 100
"""Width of the terminal."""
BEGIN, END = "<!-- transcript: made by `python -m scripts.readme render` -->", "<!-- end of the transcript -->"
MOST_LINES = 7
"""Maximum number of successive trials, and of lines of a section, that are shown; an entry is not cut in two."""
_PROMPT, _LEFT_OUT = "$ scripts/demo", "..."
_TRIAL = re.compile(r" *\d+  ")
_CONTINUED, _BELOW_PLAN = " " * 4, " " * 30


def whole(records: Records) -> list[str]:
    """Returns everything that the run left on a terminal of `COLUMNS` columns."""
    r = records.recommendation
    state = SearchState(Yardstick(objective=r.objective, baseline=r.baseline.plan, memory_bytes=r.budget.memory_bytes))
    # As `autofit.trackers.progress` does, the last column stays free.
    lines = [line for kept in records.events for line in state.tell(kept.event)(COLUMNS - 1)]
    summary = brief(r, Canvas(width=COLUMNS, blocks=True), PLAN)
    return [*lines, *summary.splitlines(), f"autofit: plan written to {PLAN}"]


def shortened(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a transcript; long tables and sections are cut, with "..." where something is missing."""
    for is_blank, section in groupby(lines, lambda line: not line):
        if is_blank:
            yield from section
            continue
        for is_trial, group in groupby(section, _is_of_trial):
            yield from _beginning(list(group), "    " if is_trial else "  ")


def _is_of_trial(line: str) -> bool:
    """Returns whether a line is a row of a trial, or continues one below its plan."""
    return bool(_TRIAL.match(line)) or line.startswith(_BELOW_PLAN)


def _beginning(lines: Sequence[str], indent: str) -> Iterator[str]:
    kept = MOST_LINES
    while kept < len(lines) and lines[kept].startswith(_CONTINUED) and not _TRIAL.match(lines[kept]):
        kept += 1
    yield from lines[:kept]
    if kept < len(lines):
        yield indent + _LEFT_OUT


def block(records: Records) -> str:
    """Returns the part of README.md from `BEGIN` to `END`."""
    return "\n".join([BEGIN, "```text", _PROMPT, *shortened(whole(records)), "```", END])


def inserted(readme: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """Returns README.md with `text` in place of its part from `begin` to `end`.

    Raises:
        ValueError: it does not have this part exactly once.
    """
    before, found, rest = readme.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended) or begin in after:
        raise ValueError(f"README.md has no single part between {begin!r} and {end!r}; expected exactly one")
    return f"{before}{text}{after}"
