"""JobsSource: the text of a jobs file with its lines, and the texts of the problems that are found in it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autofit import strict_yaml
from autofit.core.errors import UsageError
from autofit.core.printable import one_line
from autofit.core.redaction import redacted
from autofit.files import head_of
from autofit.nightly.job import FOLDER

MAX_BYTES = 2**20
"""Maximum size of a jobs file."""
MOST_PROBLEMS = 10
"""Maximum number of problems shown for one part of the file."""
_SHOWN_LETTERS = 60
_EXPECTED = {
    "string_type": "a text; quote a text that YAML reads as something else",
    "string_pattern_mismatch": "1 to 64 letters, digits, '.', '_' and '-', with a letter or a digit first",
    "string_too_short": "a non-empty text",
    "int_type": "a whole number",
    "float_type": "a number",
    "greater_than": "a number greater than 0",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
"""What was expected, by pydantic's type of the error."""

_Record = TypeVar("_Record", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class JobsSource:
    """A jobs file that was read as YAML.

    Attributes:
        path: the file, as an absolute path.
        data: what it contains.
        lines: the line of each value.
    """

    path: Path
    data: Any
    lines: Mapping[strict_yaml.Place, int]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Reads a file.

        Raises:
            UsageError: the file is missing, too large or not YAML.
        """
        absolute = Path(os.path.abspath(path))
        text = _text(absolute)
        try:
            data, lines = strict_yaml.load_with_lines(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an escape above U+10FFFF
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark is not None else ""
            problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
            raise UsageError(
                one_line(f"{absolute}{line}: {problem}. The file is not valid YAML: correct it.")
            ) from None
        return cls(absolute, data, lines)

    def checked(
        self, model: type[_Record], data: Any, place: strict_yaml.Place = (), what: str = ""
    ) -> _Record | list[str]:
        """Returns the record of `data`, or the problems that were found in it.

        Args:
            model: class of the record.
            data: what is at `place`.
            place: the keys that lead to it.
            what: description of this part of the file, such as "job gpt".
        """
        try:
            return model.model_validate(data, context={FOLDER: self.path.parent})
        except ValidationError as error:
            found = sorted(error.errors(include_url=False), key=lambda each: self._line((*place, *each["loc"])))
        problems = [self._of_error(each, model, place, what) for each in found[:MOST_PROBLEMS]]
        more = len(found) - len(problems)
        return [*problems, f"{self.path}: {what or 'the file'} has {more} more errors"] if more else problems

    def problem(self, place: strict_yaml.Place, what: str, found: str, expected: str) -> str:
        """Returns the text of a problem: file, line, what was found and what was expected."""
        where = f"{self.path}, line {self._line(place)}"
        return one_line(f"{where}: {f'{what}: ' if what else ''}found {found}; expected {expected}")

    def _line(self, place: strict_yaml.Place) -> int:
        """Returns the line of a place, or of the nearest mapping or list around it."""
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 1)

    def _of_error(self, error: ErrorDetails, model: type[BaseModel], place: strict_yaml.Place, what: str) -> str:
        inner = tuple(key for key in error["loc"] if key != "[key]")
        key = ".".join(map(str, inner))
        if error["type"] == "missing":
            return self.problem((*place, *inner), what, f"no `{key}`", "that key")
        if error["type"] == "extra_forbidden":
            return self.problem((*place, *inner), what, f"the unknown key {shown(inner[-1])}", _known(inner, model))
        context = error.get("ctx", {})
        if "expected" in context and error["type"] != "literal_error":
            found, expected = context.get("found") or shown(error["input"]), str(context["expected"])
        else:
            found, expected = shown(error["input"]), _EXPECTED.get(error["type"]) or _in_words(error["msg"])
        return self.problem((*place, *inner), ", ".join(filter(None, (what, f"`{key}`"))), found, expected)


def shown(value: object) -> str:
    """Returns a value of a file as a message shows it: short, on one line and without secrets."""
    if isinstance(value, dict | list | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None:
        return "nothing"
    text = one_line(redacted(repr(value)))
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]} ..."


def _in_words(message: str) -> str:
    """Returns pydantic's message as what was expected: "Input should be 'a' or 'b'" is "'a' or 'b'"."""
    return message.removeprefix("Input should be ")


def _known(inner: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """Returns the keys that a mapping may have, or the one that is like an unknown key."""
    for step in inner[:-1]:
        part = next((each for name, each in model.model_fields.items() if step in (name, each.alias)), None)
        if part is None or not isinstance(part.annotation, type) or not issubclass(part.annotation, BaseModel):
            return "no further keys"
        model = part.annotation
    keys = [each.alias or name for name, each in model.model_fields.items()]
    near = get_close_matches(str(inner[-1]), keys, n=1)
    return f"a known key; did you mean `{near[0]}`?" if near else f"one of {', '.join(keys)}"


def _text(path: Path) -> str:
    try:
        data = head_of(path, MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        found = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            one_line(
                f"cannot read the jobs file {path}: {found}; expected a YAML file. Check the path, or write a "
                "first file with `autofit nightly init train.py:make_workload`."
            )
        ) from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            one_line(f"{path}: found more than {MAX_BYTES} bytes; expected a jobs file, which is smaller.")
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            one_line(f"{path}, line {line}: found bytes that are not UTF-8; expected YAML text.")
        ) from None
