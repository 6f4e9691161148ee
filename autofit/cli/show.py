"""`autofit show`: explains a plan file."""

import argparse
import sys

from autofit import planfile
from autofit.core.printable import ascii_json
from autofit.reports.canvas import Canvas
from autofit.reports.summary import summarize


def execute(given: argparse.Namespace) -> int:
    """Prints the plan file's recommendation."""
    recommendation = planfile.load(given.plan)
    if given.json:
        print(ascii_json(recommendation.model_dump_json(by_alias=True, indent=2)))
    else:
        print(summarize(recommendation, Canvas.of(sys.stdout), given.plan))
    return 0
