"""`autofit export`: writes a plan as code or settings for another framework."""

import argparse
import json
import sys

from autofit import exporters, planfile
from autofit.cli.saving import save_export
from autofit.core.printable import ascii_json, printable


def execute(given: argparse.Namespace) -> int:
    """Writes the export, and names the knobs that it cannot express."""
    export = exporters.by_name(given.to).export(planfile.load(given.plan))
    if given.output is not None:
        save_export(export, given.output, force=given.force)
    if given.json:
        document = {"text": export.text, "filename": export.filename, "unmapped": export.unmapped}
        print(ascii_json(json.dumps(document, indent=2)))
    elif given.output is None:
        print(printable(export.text), end="")
    if export.unmapped and not given.quiet:
        print(f"autofit: {given.to} cannot express {printable(', '.join(export.unmapped))}", file=sys.stderr)
    return 0
