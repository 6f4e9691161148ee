"""`autofit nightly init`: writes a first jobs file."""

import argparse
import json
import sys
from pathlib import Path

from autofit.cli import values
from autofit.core.errors import UsageError
from autofit.core.printable import ascii_json, printable
from autofit.core.units import parse_duration
from autofit.files import followed, write_atomically
from autofit.nightly.first_jobs_file import first_jobs_file
from autofit.nightly.job import is_file, split


def execute(given: argparse.Namespace) -> int:
    """Writes the file, or prints it for "-"."""
    to_stdout = given.output == "-"
    folder = Path.cwd() if to_stdout else Path(given.output).absolute().parent
    if given.time is not None:
        parse_duration(given.time)  # raises before anything is written
    chosen = {
        "device": given.device,
        "global_batch": given.global_batch,
        "memory": values.memory(given.memory),
        "time": given.time,
    }
    content = first_jobs_file(given.target, folder=folder, name=given.name, given=chosen)
    if not to_stdout:
        _write(Path(given.output), content, force=given.force)
    where, _ = split(given.target)
    if not to_stdout and is_file(where) and not Path(where).expanduser().exists():
        print(f"autofit: {printable(where)} does not exist: the job will fail until it does", file=sys.stderr)
    if given.json:
        done = {"output": given.output, "text": content}
        print(ascii_json(json.dumps(done, indent=2)))
    elif to_stdout:
        print(printable(content), end="")
    elif not given.quiet:
        print(f"autofit: jobs file written to {printable(given.output)}; `autofit nightly {printable(given.output)} "
              "--dry-run` says what a night does with it", file=sys.stderr)  # fmt: skip
    return 0


def _write(path: Path, content: str, *, force: bool) -> None:
    try:
        target = followed(path)
        if target.exists() and not (target.is_file() and force):
            raise UsageError(
                f"{path} was not written: found something there; expected no file. Add the job to it by hand, choose "
                "another path with -o, or replace a file with --force."
            )
        write_atomically(target, content.encode())
    except OSError as error:
        raise UsageError(
            f"{path} was not written: {error.strerror or error}; expected a directory that exists and has "
            "space. Choose another path with -o."
        ) from None
