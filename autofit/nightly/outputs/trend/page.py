"""The trend page: every job with its history, in one file that needs no network."""

from functools import cache
from importlib.resources import files

from autofit.nightly.outputs.facts import MARK, History, moment
from autofit.nightly.outputs.trend.index import NAME, index
from autofit.nightly.outputs.trend.jobs import trends
from autofit.nightly.outputs.trend.section import job_section
from autofit.nightly.result import NightResult
from autofit.reports.frame import Frame, page, script, style
from autofit.reports.markup import shortened
from autofit.reports.sentences import counted

_DOCTYPE = "<!DOCTYPE html>"


def rendered(night: NightResult, history: History) -> str:
    """Returns the page, complete and the same for the same arguments. Every text of users is escaped and cut.

    Args:
        night: the newest night.
        history: all records of each job, oldest first, with or without those of the night.
    """
    found = trends(night, history)
    sections = [(one.anchor, shortened(one.name, NAME) or "unnamed", job_section(one)) for one in found if one.records]
    text = page(_frame(night, len(found)), ("answer", "The night", index(night, found)), sections)
    return f"{_DOCTYPE}{MARK}{text.removeprefix(_DOCTYPE)}"


def _frame(night: NightResult, jobs: int) -> Frame:
    began = shortened(moment(night.night), 40)
    return Frame(
        window=f"Night of {began} – autofit nightly",
        kind="autofit nightly",
        title=f"Night of {began}",
        about=[counted(jobs, "job"), f"exit code {night.exit_code}"],
        footer="Made by autofit. This file is self-contained and needs no network.",
        style=style(_text("trend.css")),
        script=script(_text("nights.js")),
    )


@cache
def _text(name: str) -> str:
    return files("autofit.nightly.outputs.trend").joinpath(name).read_text(encoding="utf-8")
