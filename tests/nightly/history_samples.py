"""Jobs files and records that the tests of nights are written with."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from autofit.core.environment import Environment
from autofit.core.plan import Plan
from autofit.nightly.records import Figures, HistorySegment, NightRecord, Verdict, VerdictKind

PLAN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, "precision": "bf16"})
HERE = Environment(
    workload="w1", device_type="cuda", device_name="H100", capacity_bytes=80 * 2**30, versions={"torch": "2.13.0"}
)
FULL = """\
schema: autofit.jobs/1
history: .autofit/study.db        # studies and history
time: 2h
defaults: {device: cuda, time: 10min}
jobs:
  - name: gpt
    workload: train.py:make_workload
    args: {depth: 4}
    device: cuda:0
    global_batch: 256
    memory: 20GiB
    objective: tokens
    numerics: mixed
    plan: plans/gpt.yaml
    accept: auto
    on_regression: ["./notify", "--team", "gpt"]
  - {name: resnet, workload: "vision.train:make", plan: plans/resnet.yaml, time: null, memory: 0.5}
"""
"""A jobs file with most of what one may have."""
FIRST = datetime(2026, 11, 1, 1, tzinfo=UTC)


def record(number: int, job: str = "gpt", **changes: object) -> NightRecord:
    """Returns the record of a job in the night with this number."""
    night = FIRST + timedelta(days=number)
    made = NightRecord(
        id=f"{job}-{number}", job=job, night=night.isoformat(), at=(night + timedelta(minutes=2)).isoformat(),
        environment=HERE, segment=HistorySegment.of(HERE, PLAN),
        accepted=Figures(plan=PLAN, rates_per_s=(100.0 + number, 101.5, 99.25), peak_bytes=7 * 2**30),
        verdict=Verdict(kind=VerdictKind.STEADY, reason="within the noise of 14 nights", compared_nights=14),
    )  # fmt: skip
    return made.model_copy(update=changes)


def jobs_file(folder: Path, text: str, head: str = "schema: autofit.jobs/1\n") -> Path:
    """Writes a jobs file."""
    path = folder / "jobs.yaml"
    path.write_text(head + text)
    return path
