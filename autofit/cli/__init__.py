"""The command line: arguments in, exit code out. The only place that prints results.

Exit codes are stable; `_EXIT_CODES` lists them. The result goes to stdout, everything else to stderr. If the plan file
cannot be written, `tune` still prints the result, and exits with 2. With `run`, stdout and the exit code are the
script's, and autofit prints to stderr alone.
"""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import NoReturn

from autofit.cli import arguments as _arguments
from autofit.core.printable import printable

COMMANDS = {
    "tune": ("find the fastest plan for a workload within a memory budget", _arguments.tune),
    "run": ("run a script, and tune what it trains where its training starts", _arguments.run),
    "estimate": ("estimate the memory that a workload needs on a device, without running it", _arguments.estimate),
    "doctor": ("find what wastes memory in a training step: the line, the holder and the size", _arguments.doctor),
    "show": ("explain a plan file", _arguments.show),
    "diff": ("say what differs between two plan files", _arguments.diff),
    "report": ("write a report of a plan or a study, as HTML, Markdown or JSON", _arguments.report),
    "export": ("write a plan as code or settings for another framework", _arguments.export),
    "nightly": ("check the plans in use, and tune again where it is worthwhile", _arguments.nightly),
    "nightly init": ("write a first jobs file", _arguments.nightly_init),
    "nightly accept": ("accept the better plan that a night found for a job", _arguments.nightly_accept),
    "completion": ("print a shell completion script", _arguments.completion),
}
_SHARED = {"show": "plans", "diff": "plans", "report": "plans", "export": "plans", "completion": "about"}
"""Commands whose module has several."""
_EXIT_CODES = """\
exit codes:
  0    success
  1    internal error
  2    usage error, or the plan or the report could not be saved
  3    no plan fits into the memory budget
  4    nightly: an accepted plan is slower, needs more memory or does not run;
       doctor: something of --fail-on was found
  5    your code failed
  6    the device or the study is in use by another tuner
  7    the time budget ended before a plan was proven
  8    the device does not respond
  130  interrupted"""
_ENVIRONMENT = """\
environment variables:
  AUTOFIT_RUNTIME_DIR  directory of the locks that admit one tuner per device
  NO_COLOR             if set, no colours are used"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, given without the program name or else by `sys.argv`, and returns its exit code."""
    began_s = monotonic()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by `>&-`; the next file to be opened would take its place
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # until the process ends
    words = sys.argv[1:] if arguments is None else list(arguments)
    _Parser.as_json, _Version.verbose = "--json" in words, "--verbose" in words
    reader = parser()
    given = reader.parse_args(words, argparse.Namespace(began_s=began_s, words=words))
    if given.verbose:
        reader.error("--verbose goes with --version alone: autofit --version --verbose")
    outcome = import_module("autofit.cli.outcome")
    # The command is loaded inside `run`, so that a Ctrl-C during loading is handled like any other.
    code: int = outcome.run(lambda given: _command(given.command)(given), given)
    return code


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    """Returns the function that runs a command.

    It is `init` of the module `nightly` for "nightly init", `execute` in a module of the command's name, and the
    function of its name in a module of several commands.
    """
    module, _, action = name.partition(" ")
    found = import_module(f"autofit.cli.{_SHARED.get(name, module)}")
    run: Callable[[argparse.Namespace], int] = getattr(found, action or (name if name in _SHARED else "execute"))
    return run


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line. Loads nothing but argparse."""
    top = _Parser(
        prog="autofit",
        description="Find, by short measured runs, the fastest way to train your PyTorch model within a memory budget.",
        epilog="\n\n".join((_EXIT_CODES, _ENVIRONMENT, _shown(_arguments.TOUR))),
        formatter_class=_Formatter,
    )
    top.add_argument("--version", action=_Version)
    top.add_argument("--verbose", action="store_true", help="with --version: the environment that a bug report needs")
    commands = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, (about, _) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog=_shown(_arguments.EXAMPLES[name]),
            formatter_class=_Formatter,
        )
        fill(sub, name)
    return top


def fill(sub: argparse.ArgumentParser, name: str) -> None:
    """Adds the arguments of a command to its parser."""
    COMMANDS[name][1](sub)
    if name == "completion":
        sub.set_defaults(json=False, quiet=False)
        return
    if name == "run":  # stdout is the script's
        sub.set_defaults(json=False)
    else:
        sub.add_argument("--json", action="store_true", help="print one JSON document on stdout, also on failure")
    sub.add_argument("-q", "--quiet", action="store_true", help="print only the result and errors")


def _shown(examples: Sequence[str]) -> str:
    return "\n  ".join(["examples:", *examples])


class _Formatter(argparse.HelpFormatter):
    """Keeps the line breaks of a text with several lines; wraps others to the terminal, at spaces."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)  # names stay whole


class _Parser(argparse.ArgumentParser):
    """Reports a usage error on stdout too if the command line asks for JSON. Knows commands of two words, and `run`."""

    as_json = False

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # overloaded in typeshed
        """Parses the words; those of a command of two words are one, so that `nightly FILE` is another command."""
        words = list(sys.argv[1:] if args is None else args)
        if (command := " ".join(words[:2])) in COMMANDS and len(words) > 1:
            words[:2] = [command]
        if words[:1] not in (["run"], ["doctor"]) or "--" not in words:
            return super().parse_known_args(words, namespace)
        end = words.index("--")  # what comes after it is for the script
        found, others = super().parse_known_args(words[:end], namespace)
        found.arguments = words[end + 1 :]
        return found, others

    def error(self, message: str) -> NoReturn:
        message = f"{printable(message)}{_did_you_mean(message)}"
        if self.as_json:
            print(import_module("autofit.cli.outcome").failure(2, "UsageError", message))
        super().error(message)


def _did_you_mean(message: str) -> str:
    """Returns a question that names the choice that an invalid one is like, or ""."""
    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    choices = [] if found is None else [choice.strip("' ") for choice in found[2].split(",")]
    near = [] if found is None else import_module("difflib").get_close_matches(found[1], choices, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class _Version(argparse.Action):
    """Prints the version, or the environment with `--verbose`. Looked up only on request, which takes 20 ms."""

    verbose = False

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        found = import_module("autofit.cli.about")
        print(found.environment() if self.verbose else f"torch-autofit {found.installed()}")
        sys.exit(0)
