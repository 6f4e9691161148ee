"""The arguments of `autofit nightly` and of its actions. Loads nothing but argparse."""

import argparse

from autofit.cli.arguments import count

JOBS_FILE = "jobs.yaml"


def nightly(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly`."""
    parser.add_argument(
        "jobs", metavar="FILE", nargs="?", default=JOBS_FILE,
        help="jobs file, which `autofit nightly init` writes (default: %(default)s)",
    )  # fmt: skip
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--job", action="append", default=[], dest="only", metavar="NAME",
        help="check this job alone, as each task of a Slurm array or Kubernetes job does. May be repeated (default: "
        "all, the longest unchecked first)",
    )  # fmt: skip
    what.add_argument(
        "--on",
        choices=("ray",),
        help="run each job as a task of the Ray cluster (default: one after the other, here). Needs the extra `ray`",
    )
    what.add_argument(
        "--time", metavar="TIME",
        help="time for the whole night: 4h, 90min (default: that of the jobs file). Jobs that were not reached come "
        "first in the next night",
    )  # fmt: skip
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="say what would be checked, in which order and why, with the last verdicts",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--markdown", metavar="FILE", help="also write Markdown, for a pull request or a job summary")
    output.add_argument(
        "--html", metavar="FILE", help="also write the history of all jobs as one HTML page that needs no network"
    )
    output.add_argument("--force", action="store_true", help="replace these files even if autofit did not write them")
    output.add_argument(
        "--fail-on", choices=("regression", "change", "never"), default="regression",
        help="which verdicts give exit code 4: regression (default; also a plan that does not run), change (also a "
        "faster or better plan, or another environment), or never. Errors have their exit codes in any case; of "
        "several jobs, the worst one counts",
    )  # fmt: skip


def init(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly init`."""
    parser.add_argument(
        "target", metavar="TARGET", help="train.py:make_workload or package.module:make_workload, as for tune"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: that of the file or module)")
    parser.add_argument("--device", metavar="NAME", help="cuda, cuda:1, cpu (default: the best that is available)")
    parser.add_argument("--global-batch", type=count, metavar="N", help="samples per optimizer step, kept exactly")
    parser.add_argument("--memory", metavar="SIZE", help="memory budget: 20GiB, or a fraction such as 0.5")
    parser.add_argument("--time", metavar="TIME", help="time for tuning the job again: 10min, 1h")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default=JOBS_FILE, help="file to write, - for stdout (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE")


def accept(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly accept`."""
    parser.add_argument("job", metavar="JOB", help="name of the job")
    parser.add_argument("--jobs", metavar="FILE", default=JOBS_FILE, help="jobs file (default: %(default)s)")
    parser.add_argument(
        "--level",
        action="store_true",
        help="accept the present speed and memory of the job instead, so that nights no longer report its open "
        "regression. The plan stays",
    )
