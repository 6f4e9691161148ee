"""A night on a Ray cluster: each job on its machine, one machine killed, and a word where Ray is missing."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit import planfile
from autofit.core.errors import UsageError
from autofit.nightly.history import History
from autofit.nightly.jobs import JobsFile, read_jobs
from autofit.nightly.night import NightOptions, run_on_ray
from tests.cli.processes import TARGETS
from tests.nightly.history_samples import jobs_file


def test_without_ray_the_command_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    jobs = read_jobs(jobs_file(tmp_path, "jobs:\n  - {name: a, workload: a.py, plan: a.yaml}\n"))
    with pytest.raises(UsageError, match=r"found no Ray; .* pip install 'torch-autofit\[ray\]'"):
        run_on_ray(jobs, NightOptions())


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two machines of a local cluster, each with one processor and one GPU in name."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    made.machines = [made.add_node(num_cpus=1, num_gpus=1) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def file_of(folder: Path, *jobs: dict[str, Any]) -> JobsFile:
    defaults = {"device": "cpu", "memory": "64MiB", "strategies": ["batching"], "time": "20s"}
    path = folder / "jobs.yaml"
    path.write_text(json.dumps({"schema": "autofit.jobs/1", "defaults": defaults, "jobs": jobs}))
    return read_jobs(path)


@pytest.mark.slow
@pytest.mark.leaves("Ray keeps threads and descriptors until the process ends")
def test_each_job_is_a_task_and_a_job_whose_machine_is_killed_is_checked_on_the_other(
    cluster: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "opened"
    jobs = file_of(
        tmp_path,
        *({"name": name, "workload": f"{TARGETS}:make_slow", "plan": f"{name}.yaml", "args": {"marker": str(marker)}}
          for name in "ab"),
        {"name": "bad", "workload": f"{TARGETS}:make_failing", "plan": "bad.yaml", "gpus": 0},
    )  # fmt: skip

    def kill() -> None:
        while not marker.exists():
            time.sleep(0.05)
        cluster.remove_node(cluster.machines[0], allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    said = list[str]()
    result = run_on_ray(jobs, NightOptions(say=said.append))
    killer.join()
    assert {record.job: record.verdict.kind.value for record in result.records} == {
        "a": "cannot compare", "b": "cannot compare", "bad": "error",
    }, said  # fmt: skip
    assert (result.exit_code, result.unchecked) == (5, {})
    for name in "ab":
        assert planfile.load(tmp_path / f"{name}.yaml").environment.device_type == "cpu"
        assert len(History(jobs.history, jobs.mark).of_job(name)) == 1
