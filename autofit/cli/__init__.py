"""The command line: arguments in, exit code out. The only place that prints results.

Exit codes, which are stable: 0 ok, 1 internal error, 2 usage, 3 nothing fits, 5 the user's code failed, 6 the device
or the study is in use by another tuner, 7 the time ended with no plan, 8 the device does not answer, 130 interrupted.
A result goes to stdout, everything else to stderr. Where the plan file cannot be written, `tune` prints the result all
the same, and ends with 2.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from time import monotonic
from typing import NoReturn

from autofit.cli import arguments as _arguments
from autofit.core.printable import printable

_COMMANDS = {
    "tune": ("find the fastest plan for a workload within a memory budget", _arguments.tune),
    "estimate": ("tell the memory that a workload will need on a device, without running it", _arguments.estimate),
    "show": ("explain a plan file", _arguments.show),
    "export": ("write a plan in the words of another framework", _arguments.export),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        arguments: the command line without the program's name; None for the process's own.
    """
    began_s = monotonic()
    words = sys.argv[1:] if arguments is None else list(arguments)
    _Parser.as_json = "--json" in words
    given = parser().parse_args(words, argparse.Namespace(began_s=began_s))
    outcome = import_module("autofit.cli.outcome")
    # The command is loaded inside, so that a Ctrl-C meanwhile is an interrupt like any other.
    code: int = outcome.run(lambda given: import_module(f"autofit.cli.{given.command}").execute(given), given)
    return code


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line. Loads nothing but argparse."""
    top = _Parser(
        prog="autofit",
        description="Find, by short measured runs, the fastest way to train your PyTorch model within a memory budget.",
        epilog="exit codes: 0 ok, 1 internal, 2 usage or the plan could not be saved, 3 nothing fits, "
        "5 your code failed, 6 device busy, 7 time ended with no plan, 8 device does not answer, 130 interrupted",
    )
    top.add_argument("--version", action=_Version)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (about, add) in _COMMANDS.items():
        sub = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        add(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON document on stdout, also on failure")
        sub.add_argument("-q", "--quiet", action="store_true", help="print nothing but the result and errors")
    return top


class _Parser(argparse.ArgumentParser):
    """Says a usage error on stdout too when the command line asks for JSON."""

    as_json = False

    def error(self, message: str) -> NoReturn:
        message = printable(message)
        if self.as_json:
            print(import_module("autofit.cli.outcome").failure(2, "UsageError", message))
        super().error(message)


class _Version(argparse.Action):
    """Prints the version; found only when asked for, which costs 20 ms."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            found = version("torch-autofit")
        except PackageNotFoundError:
            found = "unknown (not installed)"
        print(f"torch-autofit {found}")
        sys.exit(0)
