"""`autofit estimate`: the memory a workload needs on a device that need not be present. Loads no user code here."""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autofit.cli import values
from autofit.cli.saving import check_output
from autofit.core.errors import NothingFits
from autofit.core.printable import ascii_json
from autofit.estimation.estimate import check_ranks, described, estimate_target
from autofit.estimation.estimation import draw
from autofit.estimation.page import render
from autofit.probing.remote.bench import Target
from autofit.reports import writing
from autofit.reports.canvas import Canvas

_CLEAR = "\r\x1b[K"


def execute(given: argparse.Namespace) -> int:
    """Estimates the target and prints the result. Returns 3 if nothing fits."""
    if given.html is not None:
        check_output(given.html, writing.check_replaceable, force=given.force)
    check_ranks(given.ranks or 1, given.layout)
    options = values.options(given, ranks=given.ranks, layout=given.layout)
    target = Target(
        name=given.target,
        arguments=values.keywords(given.arg),
        overrides=values.overrides(given),
        options=options,
        stand_in=described(given.device, options.memory_budget),
    )
    try:
        with _progress(shown=not given.quiet) as beat:
            estimation = estimate_target(target, beat, with_laws=given.html is not None)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was estimated or written") from None
    if given.html is not None:
        writing.write(writing.marked(render(estimation)), given.html, force=given.force)
    if given.json:
        print(ascii_json(estimation.model_dump_json(by_alias=True, indent=2)))
    else:
        print(draw(estimation, Canvas.of(sys.stdout)))
    return NothingFits.exit_code if estimation.shortfall else 0


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[str], None]]:
    """Shows on a terminal how many plans were traced, and clears the line at the end."""
    shown, count = shown and sys.stderr.isatty(), 0

    def beat(phase: str) -> None:
        nonlocal count
        count += phase == "trace"
        doing = {"import": "importing your code", "open": "inspecting the workload"}.get(phase, f"tracing plan {count}")
        print(f"{_CLEAR}autofit: {doing} ...", end="", file=sys.stderr, flush=True)

    try:
        yield beat if shown else lambda phase: None
    finally:
        if shown:
            print(_CLEAR, end="", file=sys.stderr, flush=True)
