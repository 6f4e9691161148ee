"""`autofit nightly accept`: makes the proposal of a night the accepted plan of a job."""

import argparse

from autofit.cli.nightly_changes import change
from autofit.nightly import proposals


def execute(given: argparse.Namespace) -> int:
    """Replaces the accepted plan, and prints what changed."""
    return change(given, proposals.accept, "accepted")
