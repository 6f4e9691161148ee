"""`autofit report`: writes a report of a plan or a study. Loads neither torch nor Optuna."""

import argparse
import json
import sys

from autofit.core.printable import ascii_json, printable
from autofit.reports import sources, writing
from autofit.reports.assemble import assembled
from autofit.reports.report import to_json
from autofit.study.location import dereferenced


def execute(given: argparse.Namespace) -> int:
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
        print(f"autofit: report written to {printable(given.output)}", file=sys.stderr)
        for part in report.missing:
            print(f"autofit: not in the report: {part}", file=sys.stderr)
    return 0
