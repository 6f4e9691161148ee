"""Starts a worker on every GPU of a Ray cluster (`pip install 'torch-autofit[ray]'`).

    python examples/fleet/ray_workers.py --workers 4

AUTOFIT_STUDY is the URL of the database. Start the search on a node of the same kind:

    autofit tune train.py:make_workload --study env:AUTOFIT_STUDY
"""

import argparse
import os
import subprocess
import sys

import ray


def work(idle: str, study: str) -> str:
    """Is a worker on a node of the cluster, until it was not needed for the idle time. Returns what it did."""
    command = [sys.executable, "-m", "autofit", "worker", "--study", "env:AUTOFIT_STUDY", "--idle", idle]
    variables = {**os.environ, "AUTOFIT_STUDY": study}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables).stdout.strip()


def main() -> None:
    """Starts the workers and waits for them."""
    parser = argparse.ArgumentParser(description="Start autofit's workers with Ray.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--gpus", type=float, default=1, help="GPUs of a worker; 0 for the CPU")
    parser.add_argument("--idle", default="10min", help="a worker ends when it was not needed for this time")
    given = parser.parse_args()
    study = os.environ["AUTOFIT_STUDY"]  # an argument: Ray writes the variables of a runtime environment to its logs
    ray.init(runtime_env={"working_dir": "."})
    worker = ray.remote(num_gpus=given.gpus)(work)
    for done in ray.get([worker.remote(given.idle, study) for _ in range(given.workers)]):
        print(done)


if __name__ == "__main__":
    main()
