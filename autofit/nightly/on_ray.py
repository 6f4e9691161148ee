"""A night on a Ray cluster: each job is a task with the GPUs that it needs, and Ray chooses the machine.

A task does what `autofit nightly JOBS --job NAME` does on its machine. The jobs file, the plans and the workloads must
have the same paths on all machines, as on a shared directory, and the history must be a database that all can reach.
"""

import time
from typing import Any

from autofit import locks
from autofit.core.errors import DevicePoisoned, UsageError
from autofit.core.printable import one_line
from autofit.nightly.history import History
from autofit.nightly.jobs import Job, JobsFile, read_jobs
from autofit.nightly.night import INTERRUPTED, FailOn, NightOptions, lock_of, run_night, worst
from autofit.nightly.records import NightResult
from autofit.nightly.schedule import scheduled

RETRIES = 2
"""Number of times that Ray starts a task again whose machine or process was lost."""


def run_on_ray(jobs: JobsFile, options: NightOptions) -> NightResult:
    """Checks the jobs as Ray tasks, the longest unchecked first, and returns the result of the night.

    It connects to the cluster of `RAY_ADDRESS` or of this machine, and starts a local one if there is none. The time of
    the night limits each task, its time in Ray's queue included.

    Raises:
        Busy: another night over all jobs runs on this machine.
        UsageError: Ray is not installed, or a job was named that does not exist.
    """
    ray = _ray()
    history = History.open(jobs.history, jobs.aside)
    order = [each.job for each in scheduled(jobs, history, options.today(), options.only)]
    time_s = options.time_s or jobs.time_s
    until = None if time_s is None else time.time() + time_s
    with locks.held(lock_of(jobs), f"the jobs file {jobs.path}", 0.0):
        started = not ray.is_initialized()
        if started:
            ray.init(log_to_driver=False)
        try:
            tasks = {job.name: _task(ray, job, jobs, options, until) for job in order}
            return _gathered(ray, tasks, jobs, options)
        finally:
            if started:
                ray.shutdown()


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415  # an extra
    except ImportError:
        raise UsageError(
            "found no Ray; expected the package `ray`, which --on ray needs. Install it: "
            "pip install 'torch-autofit[ray]'"
        ) from None
    return ray


def _task(ray: Any, job: Job, jobs: JobsFile, options: NightOptions, until: float | None) -> Any:
    """Submits the task of a job."""
    gpus = job.gpus if job.gpus is not None else min(ray.cluster_resources().get("GPU", 0), 1)
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_checked)
    options.say(f"{job.name}: submitted to Ray with {gpus:g} GPUs")
    return remote.remote(str(jobs.path), job.name, options.fail_on, until)


def _checked(path: str, name: str, fail_on: FailOn, until: float | None) -> str:
    """Checks one job in a process of Ray until a time in seconds since 1970. Returns the result as JSON."""
    jobs = read_jobs(path)
    left_s = None if until is None else max(until - time.time(), 1e-3)
    options = NightOptions(only=(name,), time_s=left_s, fail_on=fail_on)
    return run_night(jobs, History.open(jobs.history, jobs.aside), options).model_dump_json(by_alias=True)


def _gathered(ray: Any, tasks: dict[str, Any], jobs: JobsFile, options: NightOptions) -> NightResult:
    """Waits for the tasks and joins their results. A task that Ray lost is a job that was not checked."""
    found, unchecked, codes = list[NightResult](), dict[str, str](), [UsageError.exit_code] if jobs.problems else []
    for name, task in tasks.items():
        try:
            found.append(NightResult.model_validate_json(ray.get(task)))
            options.say(f"{name}: done, exit code {found[-1].exit_code}")
        except KeyboardInterrupt:
            for each in tasks.values():
                ray.cancel(each)
            unchecked |= dict.fromkeys(list(tasks)[len(found) + len(unchecked) :], "the night was interrupted")
            codes.append(INTERRUPTED)
            break
        except ray.exceptions.RayError as error:
            unchecked[name] = f"its Ray task did not finish: {one_line(str(error).strip().splitlines()[-1])}"
            codes.append(DevicePoisoned.exit_code)
            options.say(f"{name}: {unchecked[name]}")
    return NightResult(
        night=options.today().isoformat(timespec="seconds"),
        records=tuple(record for each in found for record in each.records),
        problems=jobs.problems,
        unchecked={name: why for each in found for name, why in each.unchecked.items()} | unchecked,
        notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
        exit_code=worst([*codes, *(each.exit_code for each in found)]),
    )
