"""Job: a workload with its accepted plan, as a jobs file describes it. JobsFile: all jobs of a file, as they were read.

The models of this module also make the published JSON Schema, so each field has its description.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationInfo
from pydantic import WithJsonSchema as Shown
from pydantic_core import PydanticCustomError

from autofit.core.briefing import Options
from autofit.core.errors import UsageError
from autofit.core.units import parse_budget, parse_duration
from autofit.probing.child_request import Target
from autofit.study.location import Place

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of jobs. They are parts of file names, study names and reports."""
FOLDER = "folder"
"""Key of the validation context whose value is the folder of the jobs file. Relative paths are relative to it."""
_ASIDE_FOLDER = ".autofit"
_AMOUNT = 'an amount with its unit such as "20GiB", or a fraction of the device such as 0.5'
_DURATION = 'a time such as "10min", "90s" or "1.5h", or a number of seconds'


def expected(what: str, found: str = "") -> PydanticCustomError:
    """Returns the error of a value, with what was expected. `found` describes the value; "" shows the value itself."""
    return PydanticCustomError("autofit", "{expected}", {"expected": what, "found": found})


def absolute(text: str, info: ValidationInfo) -> Path:
    """Returns a path of a jobs file as an absolute path."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise expected("a path that does not begin with `~` and the name of an unknown user") from None
    return Path(os.path.abspath((info.context or {}).get(FOLDER, Path()) / path))


def split(workload: str) -> tuple[str, str]:
    """Splits "train.py:make_workload" into "train.py" and ":make_workload"; the second part may be missing."""
    where, colon, function = workload.rpartition(":")
    return (where, f":{function}") if colon and function.isidentifier() else (workload, "")


def is_file(where: str) -> bool:
    """Returns whether the first part of a workload is a file, and not a module."""
    return where.endswith(".py") or "/" in where or "\\" in where


def _seconds(given: Any) -> float | None:
    try:
        return None if given is None else parse_duration(given)
    except UsageError:
        raise expected(_DURATION) from None


def _memory(given: Any) -> Any:
    try:
        if not (isinstance(given, float) and 0 < given <= 1):
            parse_budget(given)
    except UsageError:
        raise expected(_AMOUNT) from None
    return given


def _text(given: str) -> str:
    try:
        unusable = "\0" in given or not given.encode().strip()
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise expected("a non-empty text without NUL or unpaired surrogates")
    return given


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    wrong = next((name for name in given if not name.isidentifier()), None)
    if wrong is not None:
        raise expected("names of arguments, such as `depth: 4`", f"the name {wrong!r}")
    return given


def _workload(given: str) -> str:
    if given.startswith(":"):
        raise expected("a file or a module with a function, such as train.py:make_workload")
    return given


def _plan(given: Any, info: ValidationInfo) -> Any:
    return absolute(_text(given), info) if isinstance(given, str) else given


Text = Annotated[str, Field(min_length=1), AfterValidator(_text)]
Duration = Annotated[
    float | None,
    BeforeValidator(_seconds),
    Shown(
        {"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}, {"type": "null"}], "default": None}
    ),
]
Memory = Annotated[
    int | float | str,
    BeforeValidator(_memory),
    Shown({"anyOf": [{"type": "string"}, {"type": "number", "exclusiveMinimum": 0}]}),
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

    name: str = Field(pattern=NAME, description="Unique name of the job.")
    workload: WorkloadName = Field(description=JobDefaults.model_fields["workload"].description)
    plan: Annotated[Path, BeforeValidator(_plan), Shown({"type": "string", "minLength": 1})] = Field(
        description="File of the accepted plan. A relative path is relative to the jobs file. The first night writes "
        "it if it does not exist."
    )
    _folder: Path = Path()

    def model_post_init(self, context: Any) -> None:
        """Keeps the folder of the jobs file."""
        self._folder = (context or {}).get(FOLDER, Path())

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
            name=self._located,
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

    @property
    def _located(self) -> str:
        """The workload with the absolute path of its file."""
        where, function = split(self.workload)
        return (
            f"{os.path.abspath(self._folder / os.path.expanduser(where))}{function}"
            if is_file(where)
            else self.workload
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
    def history_shown(self) -> str:
        """The storage of the history without secrets."""
        return Place.of(self.history).shown

    @property
    def local_study(self) -> Path:
        """Study of the searches of a night while the storage of the history is not available."""
        return self.folder / _ASIDE_FOLDER / f"{self.path.name}.aside.journal"

    @property
    def aside(self) -> Path:
        """File that keeps the records of a night while the storage of the history is not available."""
        return self.folder / _ASIDE_FOLDER / f"{self.path.name}.aside.jsonl"
