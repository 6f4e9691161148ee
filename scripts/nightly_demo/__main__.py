"""Plays 20 nights over four recorded jobs: prints what each night says, and writes the history as a page.

It ends with exit code 1 if a planted change is not found, or if something is reported that was not planted.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from autofit.core.budget import Clock
from autofit.nightly import outputs
from autofit.nightly.history import History
from autofit.nightly.jobs import FOLDER, Job, JobsFile
from autofit.nightly.night import NightOptions, run_night
from autofit.nightly.records import NightRecord, NightResult, VerdictKind
from autofit.reports.canvas import Canvas
from scripts.nightly_demo.recorded_jobs import JOBS, accept_fastest, opening, table_of

ROOT = Path(__file__).resolve().parents[2]
START = datetime(2026, 11, 1, 2, 15, tzinfo=UTC)
NIGHTS = 20
FOUND_BY = {"gpt": 14, "encoder": 15}
"""The last night in which the regression of a job must have been found; the other jobs must have none."""
NEW_SEGMENT = ("resnet", 10)
"""The job that gets another driver, and the night."""


def play(folder: Path, nights: int | None = None) -> tuple[NightResult, Mapping[str, Sequence[NightRecord]]]:
    """Plays the nights in a folder; returns the last one, and the history of each job."""
    jobs = []
    for job in JOBS:
        data = {"name": job.name, "workload": "recorded.py", "plan": f"{job.name}.yaml"}
        jobs.append(Job.model_validate(data, context={FOLDER: folder}))
        accept_fastest(table_of(job.name), jobs[-1].plan, job.planted(1).driver)
    file = JobsFile(path=folder / "jobs.yaml", history=str(folder / "study.journal"), jobs=tuple(jobs))
    for night in range(1, (nights or NIGHTS) + 1):
        now = START + timedelta(days=night - 1)
        history = History(file.history, file.mark)
        result = run_night(file, history, NightOptions(clock=Clock(), today=partial(_same, now)), opening(night))
        for record in result.records:
            _say(night, record)
    history = History(file.history, file.mark)
    return result, {job.name: history.of_job(job.name) for job in JOBS}


def _same(now: datetime) -> datetime:
    return now


def mistakes(history: Mapping[str, Sequence[NightRecord]]) -> list[str]:
    """Returns what was planted and not found, and what was found and not planted."""
    found = []
    for name, records in history.items():
        alarms = [night for night, record in enumerate(records, 1) if record.verdict.kind is VerdictKind.REGRESSION]
        planted = next(job for job in JOBS if job.name == name)
        changed = [n for n in range(1, len(records) + 1) if planted.planted(n).slower_ratio > 1]
        changed += [n for n in range(1, len(records) + 1) if planted.planted(n).more_memory_ratio > 1]
        by = FOUND_BY.get(name)
        if by is not None and (not alarms or alarms[0] > by):
            found.append(f"{name}: the regression was not found by night {by}, but in {alarms or 'none'}")
        if wrong := [night for night in alarms if night not in changed]:
            found.append(f"{name}: a regression was reported in night {wrong[0]}, where none was planted")
    name, night = NEW_SEGMENT
    if not any("driver" in text for text in history[name][night - 1].verdict.changed):
        found.append(f"{name}: night {night} does not name the driver that changed")
    return found


def _say(night: int, record: NightRecord) -> None:
    if night > 5 and record.verdict.kind is not VerdictKind.STEADY:  # until then no night can be compared
        print(
            f"night {night:2}  {record.job:8} {record.verdict.kind.value}: {record.verdict.reason.partition('; ')[0]}",
            flush=True,
        )


def main(words: Sequence[str] | None = None) -> int:
    """Plays the nights, and a real one if asked to. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/nightly-demo", description=__doc__)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, default=Path("nightly-demo.html"))
    parser.add_argument("--real", action="store_true", help="then check examples/nightly/jobs.yaml on this CPU")
    given = parser.parse_args(words)
    for job in JOBS:
        print(f"{job.name}: {job.about}")
    with tempfile.TemporaryDirectory() as folder:
        result, history = play(Path(folder))
    print(outputs.to_text(result, history, Canvas.of(sys.stdout)))
    given.output.write_text(outputs.to_html(result, history), encoding="utf-8")
    print(f"The history of all jobs: {given.output}")
    wrong = mistakes(history)
    print(*wrong, sep="\n")
    if given.real and not wrong:
        jobs = ROOT / "examples" / "nightly" / "jobs.yaml"
        return subprocess.run([sys.executable, "-m", "autofit", "nightly", str(jobs)], check=False).returncode
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
