"""The source of the package, scripts and examples as the rules see it: files, functions, classes, names and texts."""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "autofit"
SCRIPTS = (ROOT / "scripts", ROOT / "examples")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file.

    Attributes:
        path: relative to the checkout.
        text: what it holds.
        tree: the same, parsed.
    """

    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.text.count("\n")

    def functions(self) -> Iterator[Function]:
        """Yields every function and method, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        """Yields every class."""
        yield from (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def code_lines(self, function: Function) -> int:
        """Returns the lines of a function's body that hold code: no blank lines, comments or docstring."""
        documented = ast.get_docstring(function, clean=False) is not None
        first = function.body[0]
        skipped = range(first.lineno, (first.end_lineno or first.lineno) + 1) if documented else range(0)
        counted = range(first.lineno, (function.end_lineno or function.lineno) + 1)
        return sum(line in counted and line not in skipped for line in self._lines_with_code)

    @cached_property
    def _lines_with_code(self) -> set[int]:
        found: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                found.update(range(token.start[0], token.end[0] + 1))
        return found


_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


@cache
def modules() -> tuple[Module, ...]:
    """Returns the modules of the package, sorted by path."""
    return tuple(read(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def scripts() -> tuple[Module, ...]:
    """Returns the modules of scripts and examples, sorted by path."""
    return tuple(read(path) for folder in SCRIPTS for path in sorted(folder.rglob("*.py")))


def read(path: Path) -> Module:
    """Returns one file, parsed."""
    text = path.read_text(encoding="utf-8")
    return Module(path.relative_to(ROOT), text, ast.parse(text))
