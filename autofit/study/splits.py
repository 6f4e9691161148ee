"""What trainings leave for the next search: that a plan ran out of memory in them, so that micro batches were split.

The records are lines of JSON in a file beside the study, or beside the plan file if the study is not on this machine. A
search that reads them counts the plan as one that does not fit, and deletes them. Loads no Optuna.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from autofit.core.environment import Environment
from autofit.core.outcome import IN_TRAINING
from autofit.core.plan import Plan
from autofit.core.strict import Strict
from autofit.files import head_of, write_atomically
from autofit.study.location import NETWORK, StudyPlace

SUFFIX = ".splits.jsonl"
_MOST_BYTES = 2**22


class TrainingSplits(Strict):
    """The micro batches of one training that ran out of memory and were split.

    Attributes:
        training: identifier of the training. Its last record counts.
        plan: the plan with which it trains.
        environment: where the plan was tuned.
        micro_batches: number of micro batches that were split so far.
        largest_samples: number of samples of the largest one.
        first_at: UTC time of the first one in ISO 8601.
        last_at: UTC time of the last one.
    """

    training: str
    plan: Plan
    environment: Environment
    micro_batches: int
    largest_samples: int
    first_at: str
    last_at: str

    @property
    def words(self) -> str:
        """What happened, as a sentence without a full stop."""
        return (
            f"{IN_TRAINING}: {self.micro_batches} of its micro batches of up to "
            f"{self.largest_samples} samples were split, the first at {self.first_at}"
        )


def places(study: str | Path, plan_file: str | Path = "") -> list[Path]:
    """Returns the files where the records of a plan may be. A training writes to the first whose directory exists."""
    found, text = list[Path](), str(study)
    if not text.startswith(NETWORK) and text not in ("", "memory"):  # as an answer names a study in memory
        relative = "://" not in text and plan_file and not text.startswith("~")
        path = StudyPlace.of(Path(plan_file).absolute().parent / text if relative else text).path
        found += [] if path is None else [path]
    found += [Path(plan_file).absolute()] if plan_file else []
    return [path.with_suffix(SUFFIX) for path in found]


def write(files: Iterable[Path], record: TrainingSplits) -> str:
    """Appends a record to the first file whose directory exists. Returns why it could not be written, or ""."""
    path = next((each for each in files if each.parent.is_dir()), None)
    if path is None:
        return "there is no study and no plan file on this machine"
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{record.model_dump_json()}\n")
    except OSError as error:
        return f"{path} was not written: {error.strerror or error}"
    return ""


def read(files: Iterable[Path], environment: Environment) -> list[TrainingSplits]:
    """Returns the last record of each training of a comparable environment. What cannot be read is left out."""
    known = {each.training: each for path in files for each in _records(path)}
    return [each for each in known.values() if environment.comparable(each.environment)]


def forget(files: Iterable[Path], records: Iterable[TrainingSplits]) -> None:
    """Deletes the records of these trainings."""
    done = {each.training for each in records}
    for path in files:
        before = list(_records(path))
        left = [each for each in before if each.training not in done]
        if len(left) < len(before):
            with suppress(OSError):  # they are read again
                write_atomically(path, "".join(f"{each.model_dump_json()}\n" for each in left).encode())
                if not left:
                    path.unlink()


def _records(path: Path) -> Iterator[TrainingSplits]:
    data = b""
    with suppress(OSError):  # most often there is none
        data = head_of(path, _MOST_BYTES)
    for line in data.splitlines():
        with suppress(ValidationError):
            yield TrainingSplits.model_validate_json(line)
