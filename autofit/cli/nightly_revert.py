"""`autofit nightly revert`: goes back to the plan of a job before the last change."""

import argparse

from autofit.cli.nightly_changes import change
from autofit.nightly import proposals


def execute(given: argparse.Namespace) -> int:
    """Exchanges the accepted plan and its predecessor, and prints what changed."""
    return change(given, proposals.revert, "reverted")
