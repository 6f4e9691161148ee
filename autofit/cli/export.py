"""`autofit export`: writes a plan in the words of another framework."""

import argparse
import json
import sys
from pathlib import Path

from autofit import exporters, planfile
from autofit.core.errors import UsageError
from autofit.core.summary import printable


def execute(given: argparse.Namespace) -> int:
    """Writes the export, and names the knobs that it cannot say."""
    export = exporters.by_name(given.to).export(planfile.load(given.plan))
    if given.output is not None:
        try:
            Path(given.output).write_text(export.text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{given.output} cannot be written: {error.strerror}. Give another --output.") from None
    if given.json:
        print(json.dumps({"text": export.text, "filename": export.filename, "unmapped": export.unmapped}, indent=2))
    elif given.output is None:
        print(printable(export.text), end="")
    if export.unmapped and not given.quiet:
        print(f"autofit: {given.to} has no words for {printable(', '.join(export.unmapped))}", file=sys.stderr)
    return 0
