"""`autofit show`: explains a plan file."""

import argparse

from autofit import planfile
from autofit.core.summary import printable, summarize


def execute(given: argparse.Namespace) -> int:
    """Prints the plan file's recommendation."""
    recommendation = planfile.load(given.plan)
    if given.json:
        print(recommendation.model_dump_json(by_alias=True, indent=2))
    else:
        print(printable(summarize(recommendation)))
    return 0
