"""Records that the tests of the study are written with."""

import re
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from autofit.core.environment import Environment
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose
from autofit.study import Study

MIB = 2**20
BUDGET = 1000 * MIB
PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 2, "precision": "bf16", "checkpointed_blocks": 2})
HERE = Environment(
    workload="abc", device_type="cpu", device_name="chip", capacity_bytes=2**34, versions={"torch": "2.13.0"}
)


def space(precisions: tuple[str, ...] = ("fp32", "bf16"), blocks: tuple[int, ...] = (0, 2, 4)) -> SpaceFacts:
    return SpaceFacts(
        knobs=(
            Knob(name="precision", values=precisions, default="fp32"),
            Knob(name="checkpointed_blocks", values=blocks, default=0),
        ),
        sizes=(1, 2, 4, 8),
        global_batch_size=8,
        baseline=PLAN.replace(precision="fp32", checkpointed_blocks=0),
    )


def reopen(
    location: str | Path | None,
    *,
    environment: Environment = HERE,
    facts: SpaceFacts | None = None,
    objective: Objective | None = None,
    memory_bytes: int = BUDGET,
) -> Study:
    return Study(
        location,
        name="net",
        environment=environment,
        space=facts or space(),
        objective=objective or Objective(),
        memory_bytes=memory_bytes,
    )


def measurement(peak_bytes: int = 600 * MIB, loss: float = 0.5, **memory: int) -> Measurement:
    return Measurement(
        step_times_s=(0.1, 0.125, 0.2),
        samples_per_step=8,
        memory=Memory(allocated_bytes=peak_bytes, judged_bytes=peak_bytes, judged_by="footprint", **memory),
        loss=loss,
    )


def measured(peak_bytes: int = 600 * MIB) -> Outcome:
    return Outcome(status=Status.MEASURED, measurement=measurement(peak_bytes), duration_s=1.5)


def failed(status: Status, **fields: object) -> Outcome:
    return Outcome.model_validate({"status": status, "reason": f"{status.value}, says the test", **fields})


def storage_at(path: Path) -> JournalStorage:
    """Returns Optuna's own view of a file."""
    return JournalStorage(JournalFileBackend(str(path)))


def rewrite(path: Path, old: str, new: str) -> None:
    """Changes a text in a journal, wherever it is, and takes away the checksums of its records."""
    data = path.read_bytes()
    assert old.encode() in data
    path.write_bytes(re.sub(rb'\} [0-9a-f]{8}"', b'}"', data.replace(old.encode(), new.encode())))


def in_optuna(path: Path, name: str = "net") -> list[FrozenTrial]:
    """Returns the trials of a study as Optuna itself reads them."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.load_study(study_name=name, storage=storage_at(path)).trials


def run(path: Path, outcome: Outcome, **options: object) -> None:
    """Records one trial with this outcome."""
    study = reopen(path, **options)  # type: ignore[arg-type]  # the caller's keywords are those of reopen
    study.finish(study.begin(PLAN, Purpose.PROBE), outcome)
