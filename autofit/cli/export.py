"""`autofit export`: writes a plan as code or settings for another framework."""

import argparse
import json
import sys

from autofit import exporters, planfile
from autofit.cli.saving import save_export
from autofit.core.printable import ascii_json, printable
from autofit.exporters.base import Export


def execute(given: argparse.Namespace) -> int:
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
    if not given.quiet:
        for text in _remarks(export, given.to):
            print(f"autofit: {printable(text)}", file=sys.stderr)
    return 0


def _remarks(export: Export, target: str) -> list[str]:
    """Returns what a person has to know beside the file."""
    found = [*export.warnings, *(f"to do in your code: {line}" for line in export.by_hand.values())]
    return [*found, f"{target} cannot express {', '.join(export.unmapped)}"] if export.unmapped else found
