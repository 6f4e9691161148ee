"""`autofit diff`: what differs between two plan files. Loads neither torch nor Optuna."""

import argparse
import json
import sys

from autofit import planfile
from autofit.core.printable import ascii_json, printable
from autofit.reports import differences, writing
from autofit.reports.canvas import Canvas


def execute(given: argparse.Namespace) -> int:
    """Prints the differences, or writes them as a page."""
    names = given.before, given.after
    plans = planfile.load(given.before), planfile.load(given.after)
    if given.output is not None:
        writing.write(writing.marked(differences.to_html(*plans, names)), given.output, force=given.force)
    if given.json:
        print(ascii_json(json.dumps(differences.to_dict(*plans), indent=2)))
    elif given.output is None:
        print(printable(differences.to_text(*plans, names, Canvas.of(sys.stdout))))
    elif not given.quiet:
        print(f"autofit: differences written to {printable(given.output)}", file=sys.stderr)
    return 0
