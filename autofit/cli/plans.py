"""Commands that read plans and studies: `show`, `diff`, `report`, `export`. None of them loads torch or Optuna."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from autofit import exporters, planfile
from autofit.cli.outcome import say
from autofit.core.printable import ascii_json, printable
from autofit.exporters.base import Export
from autofit.files import head_of, replaceable, unwritable, write_atomically
from autofit.reports import differences, sources, writing
from autofit.reports.assemble import assembled
from autofit.reports.canvas import Canvas
from autofit.reports.report import to_json
from autofit.reports.summary import summarize
from autofit.study.location import dereferenced


def show(given: argparse.Namespace) -> int:
    """Prints the plan file's answer."""
    answer = planfile.load(given.plan)
    if given.json:
        print(ascii_json(answer.model_dump_json(by_alias=True, indent=2)))
    else:
        print(summarize(answer, Canvas.of(sys.stdout), given.plan))
    return 0


def diff(given: argparse.Namespace) -> int:
    """Prints the differences."""
    plans = planfile.load(given.before), planfile.load(given.after)
    if given.json:
        print(ascii_json(json.dumps(differences.to_dict(*plans), indent=2)))
    else:
        print(printable(differences.to_text(*plans, (given.before, given.after), Canvas.of(sys.stdout))))
    return 0


def report(given: argparse.Namespace) -> int:
    """Writes the report to a file, or to stdout for "-"."""
    to_stdout = given.output == "-"
    kind = writing.format_of(given.output, given.format)
    if not to_stdout:
        writing.check_replaceable(given.output, force=given.force)
    report = assembled(sources.of_name(str(dereferenced(given.source)), given.name))
    if to_stdout:
        text = to_json(report) if given.json else writing.rendered(report, kind)
        print(ascii_json(text) if given.json or kind == "json" else text, end="")
        return 0
    writing.write(writing.rendered(report, kind), given.output, force=given.force)
    if given.json:
        done = {"output": given.output, "format": kind, "headline": report.headline, "missing": report.missing}
        print(ascii_json(json.dumps(done, indent=2)))
    elif not given.quiet:
        say(f"report written to {given.output}")
        for part in report.missing:
            say(f"not in the report: {part}")
    return 0


def export(given: argparse.Namespace) -> int:
    """Writes the export, and names the knobs that it cannot express."""
    export = exporters.by_name(given.to).export(planfile.load(given.plan), given.target_version)
    if given.output is not None:
        save_export(export, given.output, force=given.force)
    if given.json:
        document = {
            "text": export.text, "filename": export.filename, "target_version": export.target_version,
            "unmapped": export.unmapped, "by_hand": dict(export.by_hand), "warnings": export.warnings,
        }  # fmt: skip
        print(ascii_json(json.dumps(document, indent=2)))
    elif given.output is None:
        print(printable(export.text), end="")
    unmapped = [f"{given.to} cannot express {', '.join(export.unmapped)}"] if export.unmapped else []
    to_do = [f"to do in your code: {line}" for line in export.by_hand.values()]
    for text in [] if given.quiet else [*export.warnings, *to_do, *unmapped]:
        say(text)
    return 0


def save_export(export: Export, output: str, *, force: bool) -> None:
    """Writes an export completely or not at all. An earlier export at `output` is replaced.

    Raises:
        UsageError: `output` is a file that autofit did not export, or cannot be written.
    """
    try:
        earlier = partial(_is_earlier, export=export)
        write_atomically(replaceable(output, "an autofit export", earlier, force=force), export.text.encode())
    except OSError as error:
        raise unwritable(output, error) from None


def _is_earlier(path: Path, export: Export) -> bool:
    """Returns whether a file is empty, or begins with the first line of every export."""
    head = head_of(path, 2**12)
    mark, colon, _ = export.text.partition("\n")[0].partition("autofit plan:")
    return not head or (bool(colon) and head.startswith(f"{mark}{colon}".encode()))
