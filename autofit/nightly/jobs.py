"""The jobs file: its models, reading it, and the text of a first one.

An error in one job is a problem of that job; an error outside the jobs concerns all of them. The models also make the
published JSON Schema, so each field has its description.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
)
from pydantic import WithJsonSchema as Shown
from pydantic_core import ErrorDetails, PydanticCustomError

from autofit import strict_yaml
from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.printable import one_line, redacted
from autofit.core.units import parse_budget, parse_duration
from autofit.files import head_of
from autofit.probing.remote.target import Target
from autofit.study.location import dereferenced

JOBS_SCHEMA = "autofit.jobs/1"
FOLDER = "folder"
"""Key of the validation context whose value is the folder of the jobs file. Relative paths are relative to it."""
MAX_BYTES = 2**20
"""Maximum size of a jobs file."""
MOST_PROBLEMS = 10
"""Maximum number of problems shown for one part of the file."""
_SHOWN_LETTERS = 60
_SQLITE = "sqlite:///"
_HISTORY = "a path, a database URL, env:NAME or file:PATH"
_EXPECTED = {
    "string_type": "a text; quote a text that YAML reads as something else",
    "string_pattern_mismatch": "1 to 64 letters, digits, '.', '_' and '-', with a letter or a digit first",
    "string_too_short": "a non-empty text",
    "int_type": "a whole number",
    "float_type": "a number",
    "greater_than": "a number greater than 0",
    "greater_than_equal": "a number of at least 0",
    "too_short": "at least one job",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}
"""What was expected, by pydantic's type of the error."""
_Record = TypeVar("_Record", bound=BaseModel)


def split(workload: str) -> tuple[str, str]:
    """Splits "train.py:make_workload" into "train.py" and ":make_workload"; the second part may be missing."""
    where, colon, function = workload.rpartition(":")
    return (where, f":{function}") if colon and function.isidentifier() else (workload, "")


def is_file(where: str) -> bool:
    """Returns whether the first part of a workload is a file, and not a module."""
    return where.endswith(".py") or "/" in where or "\\" in where


def expected(what: str, found: str = "") -> PydanticCustomError:
    """Returns the error of a value, with what was expected. `found` describes the value; "" shows the value itself."""
    return PydanticCustomError("autofit", "{expected}", {"expected": what, "found": found})


def _absolute(text: str, info: ValidationInfo) -> Path:
    """Returns a path of a jobs file as an absolute path."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise expected("a path that does not begin with `~` and the name of an unknown user") from None
    return Path(os.path.abspath((info.context or {}).get(FOLDER, Path()) / path))


def _parsed(parse: Callable[[Any], Any], what: str) -> BeforeValidator:
    """Returns a validator that parses a value. For one that cannot be parsed, `what` was expected."""

    def checked(given: Any) -> Any:
        try:
            return parse(given)
        except UsageError:
            raise expected(what) from None

    return BeforeValidator(checked)


def _memory(given: Any) -> Any:
    if not (isinstance(given, float) and 0 < given <= 1):
        parse_budget(given)
    return given


def _text(given: str) -> str:
    if "\0" in given or not given.strip() or any("\ud800" <= letter <= "\udfff" for letter in given):
        raise expected("a non-empty text without NUL or unpaired surrogates")
    return given


def _schema(given: Any) -> Any:
    if given != JOBS_SCHEMA:
        raise expected(f"`{JOBS_SCHEMA}`; a newer schema needs a newer autofit")
    return given


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    wrong = next((name for name in given if not name.isidentifier()), None)
    if wrong is not None:
        raise expected("names of arguments, such as `depth: 4`", f"the name {wrong!r}")
    return given


def _workload(given: str, info: ValidationInfo) -> str:
    where, function = split(given)
    if given.startswith(":"):
        raise expected("a file or a module with a function, such as train.py:make_workload")
    return f"{_absolute(where, info)}{function}" if is_file(where) else given


def _plan(given: Any, info: ValidationInfo) -> Any:
    return _absolute(_text(given), info) if isinstance(given, str) else given


def _history(given: Any, info: ValidationInfo) -> str:
    """Returns the storage of the history. A relative path is relative to the jobs file."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise expected(_HISTORY)
    if given.startswith("file:"):
        given = f"file:{_absolute(given.removeprefix('file:'), info)}"
    try:
        text = dereferenced(given) or ""
    except UsageError as error:
        found = str(error).removeprefix("found ").partition(";")[0]
        raise expected("a path or a database URL in it", found) from None
    if text.removeprefix(_SQLITE) in ("", ":memory:", "sqlite://"):
        raise expected(f"{_HISTORY}: a history in memory would end with its process")
    if text.startswith(_SQLITE):
        return f"{_SQLITE}{_absolute(text.removeprefix(_SQLITE), info)}"
    return text if "://" in text else str(_absolute(text, info))


_AMOUNT_SCHEMA: list[dict[str, Any]] = [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]
Text = Annotated[str, Field(min_length=1), AfterValidator(_text)]
Duration = Annotated[
    float | None,
    _parsed(
        lambda given: None if given is None else parse_duration(given),
        'a time such as "10min", "90s" or "1.5h", or a number of seconds',
    ),
    Shown({"anyOf": [*_AMOUNT_SCHEMA, {"type": "null"}], "default": None}),
]
Memory = Annotated[
    int | float | str,
    _parsed(_memory, 'an amount with its unit such as "20GiB", or a fraction of the device such as 0.5'),
    Shown({"anyOf": _AMOUNT_SCHEMA}),
]
Count = Annotated[int, Strict(), Field(gt=0)]
WorkloadName = Annotated[Text, AfterValidator(_workload)]


class JobDefaults(BaseModel):
    """What all jobs of a file may share. A value of a job replaces the whole value of the defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    workload: WorkloadName | None = Field(
        default=None,
        description="What is trained: train.py:make_workload, or package.module:make_workload, as for `autofit tune`. "
        "A relative path is relative to the jobs file.",
    )
    args: Annotated[dict[str, Any], AfterValidator(_arguments)] = Field(
        default={}, description="Keyword arguments for the function of the workload."
    )
    device: Text | None = Field(
        default=None, description="cuda, cuda:1, cpu. Without it, the best device that is available."
    )
    global_batch: Count | None = Field(default=None, description="Samples per optimizer step, kept exactly.")
    max_global_batch: Count | None = Field(
        default=None, description="Largest number of samples per optimizer step if `global_batch` is not given."
    )
    memory: Memory | None = Field(
        default=None,
        description="Memory budget: 20GiB, or a fraction of the device such as 0.5. Without it, the available memory "
        "less a safety margin.",
    )
    time_s: Duration = Field(
        default=None, alias="time", description="Time for tuning this job again: 10min, 90s, 1h. Without it, no limit."
    )
    objective: Literal["samples", "tokens"] = Field(
        default="samples", description="What is maximised per second: samples, or tokens that are not padding."
    )
    numerics: Literal["exact", "mixed", "any"] | None = Field(
        default=None,
        description="exact keeps the arithmetic; mixed also tries tf32, bf16 and fp16; any also tries techniques that "
        "change the result. Without it, that of the workload, or mixed.",
    )
    mode: Literal["train", "inference"] | None = Field(
        default=None, description="train, or inference for the forward pass alone. Without it, that of the workload."
    )
    max_grad_norm: Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Clip gradients to this L2 norm."
    )
    strategies: tuple[Text, ...] | None = Field(
        default=None, description="Techniques to search, as for `autofit tune --only`. Without it, all that apply."
    )
    without: tuple[Text, ...] = Field(default=(), description="Techniques not to search.")
    gpus: Annotated[int, Strict(), Field(ge=0)] | None = Field(
        default=None,
        description="GPUs of the Ray task that checks this job with `autofit nightly --on ray`. Without it, one if the "
        "cluster has any.",
    )
    accept: Literal["propose", "auto"] = Field(
        default="propose",
        description="What happens to a better plan: propose writes it beside the accepted plan, auto replaces the "
        "accepted plan and keeps its predecessor.",
    )
    on_regression: tuple[Text, ...] = Field(
        default=(),
        description="Command that runs after a regression or an error, as a list of words, in the folder of the jobs "
        "file. It gets the summary of the night, as Markdown, on its standard input.",
    )


class Job(JobDefaults):
    """A workload with its accepted plan."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Unique name of the job.")
    workload: WorkloadName = Field(description=JobDefaults.model_fields["workload"].description)
    plan: Annotated[Path, BeforeValidator(_plan), Shown({"type": "string", "minLength": 1})] = Field(
        description="File of the accepted plan. A relative path is relative to the jobs file. The first night writes "
        "it if it does not exist."
    )

    @property
    def target(self) -> Target:
        """What a child process opens for this job, as `autofit tune` would for the same options."""
        chosen = {
            "memory_budget": self.memory,
            "numerics": self.numerics,
            "strategies": self.strategies,
            "without": self.without or None,
        }
        return Target(
            name=self.workload,
            arguments=self.args,
            overrides={
                "global_batch_size": self.global_batch,
                "mode": self.mode,
                "max_grad_norm": self.max_grad_norm,
                "max_global_batch_size": self.max_global_batch,
            },
            device=self.device,
            options=Options.model_validate({name: value for name, value in chosen.items() if value is not None}),
        )


class JobsFile(BaseModel):
    """The jobs of a file, as they were read.

    Attributes:
        path: the file.
        history: storage of the studies and the history: a path or a database URL, which may contain secrets.
        time_s: seconds for the whole night; None for no limit.
        jobs: the jobs without an error, in the order of the file.
        problems: the errors of the other jobs, each with file, line, what was found and what was expected.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    history: str = Field(repr=False)
    time_s: float | None = None
    jobs: tuple[Job, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the file, to which its paths are relative."""
        return self.path.parent

    @property
    def mark(self) -> Path:
        """File that holds the identifier of the night that runs, so that a killed night is resumed."""
        return self.folder / ".autofit" / f"{self.path.name}.night"


class Document(BaseModel):
    """The jobs of a night, and what they share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: Annotated[Literal["autofit.jobs/1"], BeforeValidator(_schema)] = Field(
        alias="schema", description="The schema of this file."
    )
    history: Annotated[str, BeforeValidator(_history), Shown({"type": "string", "minLength": 1})] = Field(
        default=".autofit/study.journal",
        validate_default=True,
        description="Storage of the studies and the history: a path, a database URL, or env:NAME or file:PATH of a "
        "variable or a file that contains a URL with secrets. A relative path is relative to this file.",
    )
    time_s: Duration = Field(
        default=None, alias="time", description="Time for the whole night: 2h, 90min. Without it, no limit."
    )
    defaults: Annotated[JobDefaults, BeforeValidator(lambda given: given or {})] = Field(
        default=JobDefaults(), description="What all jobs share."
    )
    jobs: tuple[Job, ...] = Field(min_length=1, description="The jobs, each with a name and a plan of its own.")


class _Outside(Document):
    """A document without its jobs, which are validated one by one."""

    jobs: tuple[Any, ...] = Field(min_length=1)


def read_jobs(path: str | Path) -> JobsFile:
    """Reads a jobs file. A job with an error is left out, and its errors are in `problems`.

    Raises:
        UsageError: the file is missing, not YAML or of another schema, has no jobs, or has an error outside the jobs:
            an unknown key, a wrong default, a wrong time, a history that cannot be determined.
    """
    source = _JobsSource(Path(os.path.abspath(path)))
    top = source.checked(_Outside, source.data)
    if isinstance(top, list):
        raise UsageError("\n".join(f"{problem}." for problem in top))
    jobs, problems = source.jobs(top.jobs, source.data.get("defaults") or {})
    return JobsFile(path=source.path, history=top.history, time_s=top.time_s, jobs=jobs, problems=problems)


class _JobsSource:
    """A jobs file that was read as YAML: what it contains, and the line of each value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.data, self._lines = strict_yaml.load_with_lines(_content(path))
        except strict_yaml.UNREADABLE as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark is not None else ""
            problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
            raise UsageError(one_line(f"{path}{line}: {problem}. The file is not valid YAML: correct it.")) from None

    def jobs(self, items: Sequence[Any], defaults: Mapping[str, Any]) -> tuple[tuple[Job, ...], tuple[str, ...]]:
        """Returns the jobs without an error, and the errors of the others.

        Two jobs share neither their name nor their plan, which one of them would overwrite. File systems and databases
        may ignore case.
        """
        jobs, problems, first = list[Job](), list[str](), dict[tuple[str, str], int]()
        for at, item in enumerate(items):
            name = item.get("name") if isinstance(item, dict) else None
            what = f"job {name}" if isinstance(name, str) and name else f"job {at + 1}"
            given = {**defaults, **item} if isinstance(item, dict) else item
            job = self.checked(Job, given, ("jobs", at), what)
            found = job if isinstance(job, list) else []
            for key, value in (("name", name), ("plan", getattr(job, "plan", None))):
                earlier = at if value is None else first.setdefault((key, str(value).casefold()), at)
                if earlier != at:
                    again = f"the {key} of the job in line {self._lines.get(('jobs', earlier, key), 1)} again"
                    found.append(self._problem(("jobs", at, key), what, again, f"a {key} that no other job has"))
            problems += found
            jobs += [job] if isinstance(job, Job) and not found else []
        return tuple(jobs), tuple(problems)

    def checked(
        self, model: type[_Record], data: Any, place: strict_yaml.Place = (), what: str = ""
    ) -> _Record | list[str]:
        """Returns the record of `data`, or the problems that were found in it."""
        try:
            return model.model_validate(data, context={FOLDER: self.path.parent})
        except ValidationError as error:
            found = sorted(error.errors(include_url=False), key=lambda each: self._line((*place, *each["loc"])))
        problems = [self._of_error(each, model, place, what) for each in found[:MOST_PROBLEMS]]
        more = len(found) - len(problems)
        return [*problems, f"{self.path}: {what or 'the file'} has {more} more errors"] if more else problems

    def _of_error(self, error: ErrorDetails, model: type[BaseModel], place: strict_yaml.Place, what: str) -> str:
        inner = tuple(key for key in error["loc"] if key != "[key]")
        key = ".".join(map(str, inner))
        if error["type"] == "missing":
            wanted = f"`schema: {JOBS_SCHEMA}`" if key == "schema" else "that key"
            return self._problem((*place, *inner), what, f"no `{key}`", wanted)
        if error["type"] == "extra_forbidden":
            return self._problem((*place, *inner), what, f"the unknown key {shown(inner[-1])}", _known(inner, model))
        context = error.get("ctx", {})
        if "expected" in context and error["type"] != "literal_error":
            found, expected = context.get("found") or shown(error["input"]), str(context["expected"])
        else:
            in_words = error["msg"].removeprefix("Input should be ")  # "Input should be 'a' or 'b'"
            found, expected = shown(error["input"]), _EXPECTED.get(error["type"], in_words)
        if not key:  # the whole is no mapping
            required = [each.alias or name for name, each in model.model_fields.items() if each.is_required()]
            shared = self.data.get("defaults") or {} if model is Job else {}
            expected = f"a mapping with {', '.join(f'`{name}`' for name in required if name not in shared)}"
        where = ", ".join(filter(None, (what, f"`{key}`" if key else "")))
        return self._problem((*place, *inner), where, found, expected)

    def _problem(self, place: strict_yaml.Place, what: str, found: str, expected: str) -> str:
        """Returns the text of a problem: file, line, what was found and what was expected."""
        where = f"{self.path}, line {self._line(place)}"
        return one_line(f"{where}: {f'{what}: ' if what else ''}found {found}; expected {expected}")

    def _line(self, place: strict_yaml.Place) -> int:
        """Returns the line of a place, or of the nearest mapping or list around it."""
        while place not in self._lines and place:
            place = place[:-1]
        return self._lines.get(place, 1)


def shown(value: object) -> str:
    """Returns a value of a file as a message shows it: short, on one line and without secrets."""
    if isinstance(value, dict | list | tuple):
        return f"{'a' if value else 'an empty'} {'mapping' if isinstance(value, dict) else 'list'}"
    if value is None:
        return "nothing"
    text = one_line(redacted(repr(value)))
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]} ..."


def _known(inner: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """Returns the keys that a mapping may have, or the one that is like an unknown key."""
    if inner[0] == "defaults" and len(inner) == 2:
        model = JobDefaults
    keys = [each.alias or name for name, each in model.model_fields.items()]
    near = get_close_matches(str(inner[-1]), keys, n=1)
    return f"a known key; did you mean `{near[0]}`?" if near else f"one of {', '.join(keys)}"


def _content(path: Path) -> str:
    """Returns the text of a jobs file.

    Raises:
        UsageError: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        data = head_of(path, MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return data.decode("utf-8-sig")
        problem = f"{path}: found more than {MAX_BYTES} bytes; expected a jobs file, which is smaller."
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{path}, line {line}: found bytes that are not UTF-8; expected YAML text."
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        found = error.strerror if isinstance(error, OSError) else error
        problem = (
            f"cannot read the jobs file {path}: {found}; expected a YAML file. Check the path, or write a first file "
            "with `autofit nightly init train.py:make_workload`."
        )
    raise UsageError(one_line(problem))
