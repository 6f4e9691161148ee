"""The files of a night: which may be replaced, and how they are written."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autofit.core.errors import UsageError
from autofit.files import followed, head_of, write_atomically
from autofit.nightly.outputs import benchmark_json, junit, markdown
from autofit.nightly.outputs.facts import MARK, History
from autofit.nightly.outputs.trend import page
from autofit.nightly.result import NightResult

_HEAD_BYTES = 512
_KINDS: Mapping[str, tuple[Callable[[NightResult, History], str], bytes]] = {
    "junit": (junit.rendered, MARK.encode()),
    "markdown": (markdown.rendered, MARK.encode()),
    "benchmark_json": (benchmark_json.rendered, b'"unit": "'),
    "benchmark_memory_json": (benchmark_json.rendered_memory, b'"unit": "'),
    "html": (page.rendered, MARK.encode()),
}
"""For each kind of file: what renders it, and what an earlier one has in its first bytes."""


@dataclass(frozen=True, slots=True)
class NightlyFiles:
    """The files that the user asked for.

    Attributes:
        paths: path of each file, by its kind.
        force: whether other files may be replaced.
    """

    paths: Mapping[str, Path]
    force: bool

    @classmethod
    def of(cls, given: argparse.Namespace) -> "NightlyFiles":
        """Returns the files that a command line names, relative to the present working directory.

        Raises:
            UsageError: a path has something that autofit did not write, or its directory does not exist. Nothing has
                been measured then.
        """
        found = {kind: Path(path).absolute() for kind in _KINDS if (path := getattr(given, kind)) is not None}
        files = cls(found, given.force)
        for kind, path in found.items():
            files._target(kind, path)
        return files

    def write(self, night: NightResult, history: History) -> None:
        """Writes every file, each completely or not at all.

        Raises:
            UsageError: a file could not be written. The others were.
        """
        problems = []
        for kind, path in self.paths.items():
            try:
                text = _KINDS[kind][0](night, history)
                write_atomically(self._target(kind, path), text.encode(errors="replace"))
            except OSError as error:
                problems.append(f"{path} was not written: {error.strerror or error}")
            except UsageError as error:
                problems.append(str(error).removesuffix("."))
        if problems:
            raise UsageError(
                f"{'; '.join(problems)}. The records of the night are in the history: only files are missing."
            )

    def _target(self, kind: str, path: Path) -> Path:
        """Returns where a file is written: links are followed, so that they are kept."""
        try:
            target = followed(path)
            if not target.parent.is_dir():
                raise UsageError(f"{path} cannot be written: {target.parent} is not a directory. Choose another path.")
            if target.exists() and not (target.is_file() and (self.force or _is_earlier(target, _KINDS[kind][1]))):
                raise UsageError(
                    f"{path} was not written: found something there that an earlier night did not write; expected "
                    "nothing, or an earlier file of this kind. Move it away, or replace a file with --force."
                )
        except OSError as error:
            raise UsageError(f"{path} cannot be written: found {error}. Choose another path.") from None
        return target


def _is_earlier(path: Path, mark: bytes) -> bool:
    """Returns whether a file is empty, an empty list, or has the mark of its kind in its first bytes."""
    head = head_of(path, _HEAD_BYTES)
    return head.strip() in (b"", b"[]") or mark in head
