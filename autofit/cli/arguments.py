"""The arguments of each command. Loads nothing but argparse."""

import argparse


def tune(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit tune`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="train.py:make_workload or package.module:make_workload. The file is executed, in a process of its "
        "own. The function returns an autofit.Workload, a pair (model, loader), or a dict of autofit.tune's arguments",
    )
    parser.add_argument("-o", "--output", metavar="FILE", default="autofit.yaml", help="plan file (%(default)s)")
    _force(parser)
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples per optimizer step, kept exactly")
    parser.add_argument(
        "--max-global-batch",
        type=int,
        metavar="N",
        help="samples per optimizer step at most where the batch is free (a fiftieth of the data set)",
    )
    parser.add_argument("--memory", metavar="SIZE", help="memory budget: 20GiB, bytes, or a fraction such as 0.5")
    parser.add_argument("--time", metavar="TIME", help="time budget: 5min, 90s, 1h")
    parser.add_argument("--trials", type=int, metavar="N", help="probes at most")
    parser.add_argument(
        "--numerics",
        choices=("exact", "mixed", "any"),
        help="exact keeps the arithmetic; mixed (default) also tries tf32, bf16, fp16; any changes the result too",
    )
    parser.add_argument("--strategies", metavar="A,B", help="techniques to search (default: all that apply)")
    parser.add_argument("--objective", choices=("samples", "tokens"), help="what is counted per second (samples)")
    parser.add_argument(
        "--planned-steps",
        type=int,
        metavar="N",
        help="optimizer steps of your training: what a plan's first steps take longer is charged to them",
    )
    parser.add_argument("--device", help="cuda, cuda:1, cpu (default: the best there is)")
    _training(parser)
    parser.add_argument("--study", metavar="PATH", help="path or Optuna URL of the study (.autofit/study.db)")
    parser.add_argument("--searcher", help="name of the search method")
    parser.add_argument("--seed", type=int, help="makes the search repeatable (0)")
    _keywords(parser)


def estimate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit estimate`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="train.py:make_workload or package.module:make_workload, as for tune. The file is executed, in a process "
        "of its own that sees no accelerator: build model and data on the CPU",
    )
    parser.add_argument("--device", metavar="NAME", help='a device that need not be here, such as "H200", or cpu')
    parser.add_argument("--memory", metavar="SIZE", help="memory budget: 20GiB, bytes, or a fraction such as 0.5")
    parser.add_argument("--global-batch", type=int, metavar="N", help="samples per optimizer step, kept exactly")
    parser.add_argument(
        "--numerics", choices=("exact", "mixed", "any"), help="exact: the user's own precision; mixed (default): all"
    )
    parser.add_argument("--strategies", metavar="A,B", help="techniques to look at (default: all that apply)")
    _training(parser)
    parser.add_argument("--seed", type=int, help="chooses the samples that are looked at (0)")
    _keywords(parser)


def show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit show`."""
    parser.add_argument("plan", metavar="PLAN", nargs="?", default="autofit.yaml", help="plan file (%(default)s)")


def export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit export`."""
    parser.add_argument("plan", metavar="PLAN", nargs="?", default="autofit.yaml", help="plan file (%(default)s)")
    parser.add_argument("--to", metavar="NAME", default="python", help="framework to export to (%(default)s)")
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: stdout)")
    _force(parser)


# What several commands take.


def _force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace FILE also when autofit did not write it")


def _training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-grad-norm", type=float, metavar="X", help="clip gradients, as your training does")
    parser.add_argument("--mode", choices=("train", "inference"), help="what is run: train (default) or inference")


def _keywords(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument for the function, its value read as YAML; may be repeated",
    )
