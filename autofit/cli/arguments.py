"""The arguments of each command. Loads nothing but argparse."""

import argparse

TECHNIQUES = (
    "batching", "precision", "checkpointing", "memory_format", "optimizer_implementation", "optimizer_in_backward",
    "optimizer_states", "activation_offload", "linear_cross_entropy", "attention",
    "compilation", "packing", "length_grouping", "padding_multiple", "cudnn_benchmark",
)  # fmt: skip
KNOBS = (
    "micro_batch_size", "accumulation_steps", "precision", "checkpointed_blocks", "checkpoint_order",
    "recomputed_operators", "memory_format", "optimizer_implementation", "optimizer_in_backward", "optimizer_states",
    "activation_offload", "linear_cross_entropy", "attention", "compile",
    "activation_budget", "packing", "length_grouping", "padding_multiple", "cudnn_benchmark",
)  # fmt: skip
"""Names of the strategies and the knobs of autofit itself, whose own modules load torch. Completion offers them."""

_TARGET = "train.py:make_workload"
EXAMPLES = {
    "tune": (
        f"autofit tune {_TARGET} --memory 20GiB --time 5min",
        f"autofit tune {_TARGET} --global-batch 64 --numerics exact",
        f"autofit tune {_TARGET} --arg depth=12 --without checkpointing",
        f"autofit tune {_TARGET} --set precision=bf16",
        f"autofit tune {_TARGET} --study bert.journal --track tensorboard",
    ),
    "run": ("autofit run train.py", "autofit run train.py --time 2min -- --epochs 3"),
    "estimate": (
        f"autofit estimate {_TARGET} --device H200",
        f"autofit estimate {_TARGET} --memory 24GiB --html estimate.html",
    ),
    "show": ("autofit show", "autofit show bert.yaml --json"),
    "diff": ("autofit diff autofit.previous.yaml autofit.yaml", "autofit diff a.yaml b.yaml -o diff.html"),
    "report": ("autofit report", "autofit report bert.yaml -o -", "autofit report .autofit/study.journal"),
    "export": ("autofit export", "autofit export bert.yaml --to python -o loop.py"),
    "nightly": (
        f"autofit nightly init {_TARGET}",
        "autofit nightly jobs.yaml --time 4h --html nightly.html",
        "autofit nightly jobs.yaml --job gpt",
        "autofit nightly jobs.yaml --on ray",
        "autofit nightly accept gpt",
    ),
    "nightly init": (f"autofit nightly init {_TARGET} --device cuda --time 10min",),
    "nightly accept": ("autofit nightly accept gpt", "autofit nightly accept gpt --level"),
    "completion": (
        'eval "$(autofit completion bash)"',
        "autofit completion fish > ~/.config/fish/completions/autofit.fish",
    ),
}
"""Examples of each command, for the end of its `--help`."""
TOUR = (f"autofit tune {_TARGET} --memory 20GiB", "autofit show autofit.yaml", "autofit export autofit.yaml")
"""Examples of `autofit --help`."""


def count(text: str) -> int:
    """Returns a number of things, of which there is at least one."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number of at least 1")
    return int(text)


_Group = argparse._ActionsContainer
"""A parser, or a group of its arguments."""


def tune(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit tune`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="train.py:make_workload or package.module:make_workload. The code runs in a child process. The function "
        "returns an autofit.Workload, a pair (model, loader), or a dict of autofit.tune's arguments",
    )
    training = parser.add_argument_group("training")
    _steps(training, "1/50 of the data set")
    _training(training)
    _keywords(training)
    budget = parser.add_argument_group("budget")
    _budget(budget)
    budget.add_argument("--trials", type=count, metavar="N", help="maximum number of probes (default: no limit)")
    search = parser.add_argument_group("search")
    search.add_argument("--device", metavar="NAME", help="cuda, cuda:1, cpu (default: the best that is available)")
    _search(search)
    _search_output(parser.add_argument_group("output"))


def run(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit run`. Those of the script come after `--`, which the parser divides off."""
    parser.usage = "%(prog)s [options] SCRIPT [-- ARGS ...]"
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        help="Python script that trains, run as by `python SCRIPT ARGS`. Its first optimizer step starts the search; "
        "then it continues. The exit code is that of the script",
    )
    parser.set_defaults(arguments=[])
    training = parser.add_argument_group("training")
    _steps(training, "the samples of the script are kept")
    _clipping(training)
    _budget(parser.add_argument_group("budget"))
    _search(parser.add_argument_group("search"))
    _search_output(parser.add_argument_group("output"))


def estimate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit estimate`."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="train.py:make_workload or package.module:make_workload, as for tune. The code runs in a child process "
        "that sees no accelerator: create the model and the data on the CPU",
    )
    training = parser.add_argument_group("training")
    _global_batch(training)
    _training(training)
    _keywords(training)
    wanted = parser.add_argument_group("device and plans")
    wanted.add_argument("--device", metavar="NAME", help='device such as "H200", which need not be present; or cpu')
    _memory(wanted)
    _numerics(wanted, "exact: only the baseline's precision; mixed (default) and any: other precisions too")
    _strategies(wanted, "consider")
    wanted.add_argument("--seed", type=int, metavar="N", help="selects the samples that are inspected (default: 0)")
    output = parser.add_argument_group("output")
    output.add_argument("--html", metavar="FILE", help="also write a page that shows what fits with other choices")
    _force(output)


def show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit show`."""
    _plan(parser)


def diff(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit diff`."""
    parser.add_argument("before", metavar="A", help="a plan file")
    parser.add_argument("after", metavar="B", help="the plan file to compare with it")
    parser.add_argument("-o", "--output", metavar="FILE", help="HTML page to write (default: print a text)")
    _force(parser)


def report(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit report`."""
    parser.add_argument(
        "source",
        metavar="PLAN | STUDY",
        nargs="?",
        default="autofit.yaml",
        help="plan file, or a study: a journal file or a storage URL (default: %(default)s)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="autofit.html",
        help="file to write, - for stdout (default: %(default)s)",
    )
    parser.add_argument(
        "--format",
        choices=("html", "md", "json"),
        help="format of the report (default: that of FILE's suffix; Markdown on stdout)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="search to show, if the study holds several (default: the newest)"
    )
    _force(parser)


def export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit export`."""
    _plan(parser)
    parser.add_argument(
        "--to",
        metavar="NAME",
        default="python",
        help="export format: python, huggingface, accelerate, lightning, deepspeed, torchtitan, axolotl, or "
        "one that another package adds (default: %(default)s)",
    )
    parser.add_argument(
        "--target-version",
        metavar="VERSION",
        help="version of the framework to export for (default: the installed one, or else the newest that is known)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: stdout)")
    _force(parser)


def completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def _steps(group: _Group, default: str) -> None:
    _global_batch(group)
    group.add_argument(
        "--max-global-batch",
        type=count,
        metavar="N",
        help=f"largest number of samples per optimizer step if --global-batch is not given (default: {default})",
    )
    group.add_argument(
        "--planned-steps",
        type=count,
        metavar="N",
        help="number of optimizer steps you plan to train. Warm-up cost (compilation, kernel tuning) is amortised over "
        "them (default: 10000 if compilation can be searched, otherwise ignore warm-up)",
    )


def _budget(group: _Group) -> None:
    _memory(group)
    group.add_argument(
        "--time",
        metavar="TIME",
        default="5min",
        help="time for the whole search: 90s, 1h, or none for as long as it pays (default: %(default)s)",
    )


def _search(group: _Group) -> None:
    _numerics(
        group,
        "exact: keep the arithmetic; mixed (default): also try tf32, bf16 and fp16; any: also try techniques that "
        "change the result",
    )
    _strategies(group, "search")
    group.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pinned",
        metavar="KNOB=VALUE",
        help="pin a knob: search only plans with this value, such as precision=bf16 or micro_batch_size=16. The "
        "baseline is measured as it is, for comparison. May be repeated",
    )
    group.add_argument(
        "--objective",
        choices=("samples", "tokens"),
        help="what to maximise per second: samples (default), or tokens that are not padding",
    )
    group.add_argument(
        "--searcher",
        metavar="NAME",
        help="search method: guided (default), tpe, gp, random, grid, or one that another package adds",
    )
    group.add_argument("--seed", type=int, metavar="N", help="makes the search repeatable (default: 0)")
    group.add_argument(
        "--study",
        metavar="PATH",
        help="where trials are kept: a path, a storage URL of Optuna's, or env:NAME or file:PATH that contains one "
        "(default: .autofit/study.journal)",
    )


def _search_output(group: _Group) -> None:
    group.add_argument(
        "-o", "--output", metavar="FILE", default="autofit.yaml", help="plan file to write (default: %(default)s)"
    )
    _force(group)
    group.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME[:PLACE]",
        help="experiment tracker to log to: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT], or one that another "
        "package adds. May be repeated. A tracker that fails never ends the search",
    )


# Arguments that several commands share.


def _plan(group: _Group) -> None:
    group.add_argument(
        "plan", metavar="PLAN", nargs="?", default="autofit.yaml", help="plan file (default: %(default)s)"
    )


def _global_batch(group: _Group) -> None:
    group.add_argument("--global-batch", type=count, metavar="N", help="samples per optimizer step, kept exactly")


def _strategies(group: _Group, verb: str) -> None:
    group.add_argument(
        "--only",
        "--strategies",
        dest="strategies",
        metavar="A,B",
        help=f"techniques to {verb}: {', '.join(TECHNIQUES)}, or one that another package adds; an unknown name lists "
        "them all (default: all that apply)",
    )
    group.add_argument("--without", metavar="A,B", help=f"techniques not to {verb}")


def _memory(group: _Group) -> None:
    group.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory budget: 20GiB, a number of bytes, or a fraction of the device such as 0.5 (default: "
        "available memory less a safety margin)",
    )


def _numerics(group: _Group, about: str) -> None:
    group.add_argument("--numerics", choices=("exact", "mixed", "any"), help=about)


def _clipping(group: _Group) -> None:
    group.add_argument("--max-grad-norm", type=float, metavar="X", help="clip gradients to this L2 norm")


def _training(group: _Group) -> None:
    _clipping(group)
    group.add_argument(
        "--mode", choices=("train", "inference"), help="train (default), or inference for the forward pass alone"
    )


def _keywords(group: _Group) -> None:
    group.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument for the function; VALUE is read as YAML. May be repeated",
    )


def _force(group: _Group) -> None:
    group.add_argument("--force", action="store_true", help="replace FILE even if autofit did not write it")
