"""Starts workers on a Slurm cluster, or as processes of this machine, with submitit (`pip install submitit`).

    python examples/fleet/submitit_workers.py --workers 4 --cluster slurm

AUTOFIT_STUDY is the URL of the database. Start the search on a node of the same kind:

    autofit tune train.py:make_workload --study env:AUTOFIT_STUDY
"""

import argparse

import submitit


def main() -> None:
    """Submits the workers and waits for them."""
    parser = argparse.ArgumentParser(description="Start autofit's workers with submitit.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cluster", choices=("local", "slurm"), help="default: slurm where it is installed")
    parser.add_argument("--idle", default="10min", help="a worker ends when it was not needed for this time")
    parser.add_argument("--logs", default=".autofit/submitit", help="folder for the output of the workers")
    given = parser.parse_args()
    executor = submitit.AutoExecutor(given.logs, cluster=given.cluster)
    executor.update_parameters(timeout_min=120, slurm_gpus_per_node=1, slurm_job_name="autofit-worker")
    worker = submitit.helpers.CommandFunction(
        ["autofit", "worker", "--study", "env:AUTOFIT_STUDY", "--idle", given.idle]
    )
    for job in [executor.submit(worker) for _ in range(given.workers)]:
        print(job.result())


if __name__ == "__main__":
    main()
