"""The arguments of each command. Loads nothing but argparse."""

import argparse
from typing import Any

TECHNIQUES = (
    "layout", "batching", "precision", "checkpointing", "memory_format", "optimizer_implementation",
    "optimizer_in_backward", "activation_offload", "linear_cross_entropy", "attention",
    "compilation", "packing", "length_grouping", "cudnn_benchmark",
)  # fmt: skip
KNOBS = (
    "layout", "gradient_as_bucket_view", "reshard_after_forward", "gather_precision", "sync_each_batch",
    "find_unused_parameters", "micro_batch_size", "accumulation_steps", "precision", "checkpointed_blocks",
    "recomputed_operators", "memory_format", "optimizer_implementation", "optimizer_in_backward",
    "activation_offload", "linear_cross_entropy", "attention", "compile",
    "packing", "length_grouping", "cudnn_benchmark",
)  # fmt: skip
"""Names of the strategies and the knobs of autofit itself, whose own modules load torch. Completion offers them."""
FINDINGS = (
    "grows", "graph-kept", "graph-grows", "dead-at-peak", "retain-graph", "saved-unused",
    "gradient-without-optimizer", "gradient-dropped", "no-gradient", "frozen-state", "zeroed-gradients", "float64",
    "wide-mask", "view-holds", "duplicates", "modes", "checkpoint-no-effect", "heavy-module", "attention-scores",
    "logits", "optimizer-peak", "padding", "sync", "empty-cache", "fragmentation", "fp32-products", "launch-bound",
    "autocast-cache", "cudnn-workspace", "loader", "worker-growth", "recompiles", "versions",
)  # fmt: skip
"""Kinds of findings of autofit itself, whose own modules load torch. Completion offers them."""

LAYOUTS = ("replicated", "optimizer", "full", "hybrid", "tensor")
"""The layouts of several ranks."""
JOBS_FILE = "jobs.yaml"
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
        f"autofit estimate {_TARGET} --device H200 --ranks 8",
    ),
    "doctor": (
        f"autofit doctor {_TARGET}",
        "autofit doctor --script train.py -- --epochs 3",
        f"autofit doctor {_TARGET} --html doctor.html",
        f"autofit doctor {_TARGET} --json --fail-on any",
    ),
    "show": ("autofit show", "autofit show bert.yaml --json"),
    "diff": ("autofit diff autofit.previous.yaml autofit.yaml", "autofit diff a.yaml b.yaml --json"),
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


_Group = argparse._ActionsContainer
"""A parser, or a group of its arguments."""


def count(text: str) -> int:
    """Returns a number of things, of which there is at least one."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a whole number of at least 1")
    return int(text)


_FUNCTION = "train.py:make_workload or package.module:make_workload"
_NUMERICS = (
    "exact: keep the arithmetic; mixed (default): also try tf32, bf16 and fp16; any: also try techniques that change "
    "the result"
)
_ONLY = (
    f"techniques to {{}}: {', '.join(TECHNIQUES)}, or one that another package adds; an unknown name lists them all "
    "(default: all that apply)"
)
_MAX_GLOBAL_BATCH = "largest number of samples per optimizer step if --global-batch is not given (default: {})"
_NPROC = (
    "number of processes that train together, each on a device of its own: torchrun starts them, and the code runs in "
    "each. The layout is searched too. Under torchrun, the processes that it has started are used (default: 1)"
)
_PROVE = (
    "run the answer for this time at the end, on batches as they come, and watch its memory: 5min. It is not a part of "
    "--time (default: no such run)"
)
_REPEATED: dict[str, Any] = {"action": "append", "default": []}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "target": {"metavar": "TARGET", "help": f"{_FUNCTION}, as for tune"},
    "plan": {"metavar": "PLAN", "nargs": "?", "default": "autofit.yaml", "help": "plan file (default: %(default)s)"},
    "--global-batch": {"type": count, "metavar": "N", "help": "samples per optimizer step, kept exactly"},
    "--max-global-batch": {"type": count, "metavar": "N"},
    "--planned-steps": {
        "type": count,
        "metavar": "N",
        "help": "number of optimizer steps you plan to train. Warm-up cost (compilation, kernel tuning) is amortised "
        "over them (default: 10000 if compilation can be searched, otherwise ignore warm-up)",
    },
    "--max-grad-norm": {"type": float, "metavar": "X", "help": "clip gradients to this L2 norm"},
    "--mode": {"choices": ("train", "inference"), "help": "train (default), or inference for the forward pass alone"},
    "--arg": {
        **_REPEATED,
        "metavar": "NAME=VALUE",
        "help": "keyword argument for the function; VALUE is read as YAML. May be repeated",
    },
    "--memory": {
        "metavar": "SIZE",
        "help": "memory budget: 20GiB, a number of bytes, or a fraction of the device such as 0.5 (default: available "
        "memory less a safety margin)",
    },
    "--time": {
        "metavar": "TIME",
        "default": "5min",
        "help": "time for the whole search: 90s, 1h, or none for as long as it pays (default: %(default)s)",
    },
    "--prove": {"metavar": "TIME"},
    "--device": {"metavar": "NAME", "help": "cuda, cuda:1, cpu (default: the best that is available)"},
    "--numerics": {"choices": ("exact", "mixed", "any"), "help": _NUMERICS},
    "--without": {"metavar": "A,B"},
    "--set": {
        **_REPEATED,
        "dest": "pinned",
        "metavar": "KNOB=VALUE",
        "help": "pin a knob: search only plans with this value, such as precision=bf16 or micro_batch_size=16. The "
        "baseline is measured as it is, for comparison. May be repeated",
    },
    "--objective": {
        "choices": ("samples", "tokens"),
        "help": "what to maximise per second: samples (default), or tokens that are not padding",
    },
    "--searcher": {
        "metavar": "NAME",
        "help": "search method: guided (default), tpe, gp, random, grid, or one that another package adds",
    },
    "--seed": {"type": int, "metavar": "N", "help": "makes the search repeatable (default: 0)"},
    "--study": {
        "metavar": "PATH",
        "help": "where trials are kept: a path, a storage URL of Optuna's, or env:NAME or file:PATH that contains one "
        "(default: .autofit/study.journal)",
    },
    "--force": {"action": "store_true", "help": "replace FILE even if autofit did not write it"},
    "--track": {
        **_REPEATED,
        "metavar": "NAME[:PLACE]",
        "help": "experiment tracker to log to: tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT], or one that another "
        "package adds. May be repeated. A tracker that fails never ends the search",
    },
}
"""Arguments that several commands have."""


def _add(group: _Group, *names: str, **changes: Any) -> None:
    """Adds arguments to a parser or a group of its arguments, with changes for this command."""
    for name in names:
        group.add_argument(name, **_ARGUMENTS[name] | changes)


def _output(group: _Group, default: str | None, about: str) -> None:
    group.add_argument("-o", "--output", metavar="FILE", default=default, help=about)


def _search(group: _Group, verb: str, numerics: str = _NUMERICS) -> None:
    _add(group, "--numerics", help=numerics)
    group.add_argument("--only", "--strategies", dest="strategies", metavar="A,B", help=_ONLY.format(verb))
    _add(group, "--without", help=f"techniques not to {verb}")


def _search_output(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    _output(output, "autofit.yaml", "plan file to write (default: %(default)s)")
    _add(output, "--force", "--track")


def tune(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit tune`."""
    about = "The function returns an autofit.Workload, a pair (model, loader), or a dict of autofit.tune's arguments"
    _add(parser, "target", help=f"{_FUNCTION}. The code runs in a child process. {about}")
    training = parser.add_argument_group("training")
    _add(training, "--global-batch")
    _add(training, "--max-global-batch", help=_MAX_GLOBAL_BATCH.format("1/50 of the data set"))
    _add(training, "--planned-steps", "--max-grad-norm", "--mode", "--arg")
    budget = parser.add_argument_group("budget")
    _add(budget, "--memory", "--time")
    _add(budget, "--prove", help=_PROVE)
    budget.add_argument("--trials", type=count, metavar="N", help="maximum number of probes (default: no limit)")
    search = parser.add_argument_group("search")
    _add(search, "--device")
    search.add_argument("--nproc", type=count, metavar="N", help=_NPROC)
    _search(search, "search")
    _add(search, "--set", "--objective", "--searcher", "--seed", "--study")
    _search_output(parser)


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
    _add(training, "--global-batch")
    _add(training, "--max-global-batch", help=_MAX_GLOBAL_BATCH.format("the samples of the script are kept"))
    _add(training, "--planned-steps", "--max-grad-norm")
    _add(parser.add_argument_group("budget"), "--memory", "--time")
    search = parser.add_argument_group("search")
    _search(search, "search")
    _add(search, "--set", "--objective", "--searcher", "--seed", "--study")
    _search_output(parser)


def estimate(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit estimate`."""
    about = "The code runs in a child process that sees no accelerator: create the model and the data on the CPU"
    _add(parser, "target", help=f"{_FUNCTION}, as for tune. {about}")
    _add(parser.add_argument_group("training"), "--global-batch", "--max-grad-norm", "--mode", "--arg")
    wanted = parser.add_argument_group("device and plans")
    _add(wanted, "--device", help='device such as "H200", which need not be present; or cpu')
    _add(wanted, "--memory")
    ranks = (
        "number of ranks that train together, one on each device: memory is that of one rank, and the global batch is "
    )
    ranks += "ranks x micro batch x accumulation steps (default: 1)"
    wanted.add_argument("--ranks", type=count, metavar="N", help=ranks)
    layouts = (
        "what of the model each rank has: everything, and gradients are averaged (replicated, DDP); also, but a part "
    )
    layouts += "of the optimizer state (optimizer, ZeRO-1); a part of everything (full, FSDP2); that in each row of "
    layouts += (
        "ranks, and rows replicate the model (hybrid, HSDP); or a part of the layers that the model's plan names "
    )
    layouts += "(tensor, tensor parallel). Default: compare all"
    wanted.add_argument("--layout", choices=LAYOUTS, help=layouts)
    numerics = "exact: only the baseline's precision; mixed (default) and any: other precisions too"
    _search(wanted, "consider", numerics)
    _add(wanted, "--seed", help="selects the samples that are inspected (default: 0)")
    output = parser.add_argument_group("output")
    output.add_argument("--html", metavar="FILE", help="also write a page that shows what fits with other choices")
    _add(output, "--force")


def doctor(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit doctor`. Those of a script come after `--`, which the parser divides off."""
    parser.usage = "%(prog)s [options] (TARGET | --script SCRIPT [-- ARGS ...])"
    what = parser.add_mutually_exclusive_group(required=True)
    _add(what, "target", nargs="?", help=f"{_FUNCTION}, as for tune. The code runs in this process")
    what.add_argument(
        "--script",
        metavar="SCRIPT",
        help="Python script that trains, run as by `python SCRIPT ARGS` and ended after the watched steps. What it "
        "writes by then is written",
    )
    parser.set_defaults(arguments=[])
    training = parser.add_argument_group("training")
    _add(training, "--device", "--global-batch", "--max-grad-norm", "--arg")
    _add(training, "--seed", help="selects the samples of the worst batch (default: 0)")
    training.add_argument(
        "--steps",
        type=count,
        metavar="N",
        default=6,
        help="optimizer steps to watch after the first, at least 6. More of them tell a list that grows from one that "
        "is longer than the watched steps (default: %(default)s)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--html", metavar="FILE", help="also write a page with the memory of a step by kind")
    _add(output, "--force")
    _findings(parser.add_argument_group("findings"))


def _findings(kinds: _Group) -> None:
    """Adds the arguments of `autofit doctor` that choose what is looked for."""
    kinds.add_argument(
        "--only",
        dest="kinds",
        metavar="A,B",
        help=f"kinds of findings to look for: {', '.join(FINDINGS)}, or one that another package adds (default: all)",
    )
    kinds.add_argument("--skip", metavar="A,B", help="kinds of findings not to look for")
    _add(kinds, "--time", default=None, help="time for further steps with changes: 10s, 2min or none (default: 30s)")
    kinds.add_argument(
        "--no-runs",
        action="store_true",
        help="run no further steps with changes: sizes are replayed or bounds, and kinds that need such steps are not "
        "looked for",
    )
    kinds.add_argument("--all", action="store_true", help="show minor findings too")
    kinds.add_argument(
        "--fail-on",
        metavar="A,B",
        help="kinds of findings that give exit code 4, or any for all; minor ones do not count (default: none)",
    )


def show(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit show`."""
    _add(parser, "plan")


def diff(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit diff`."""
    parser.add_argument("before", metavar="A", help="a plan file")
    parser.add_argument("after", metavar="B", help="the plan file to compare with it")


def report(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit report`."""
    parser.add_argument(
        "source",
        metavar="PLAN | STUDY",
        nargs="?",
        default="autofit.yaml",
        help="plan file, or a study: a journal file or a storage URL (default: %(default)s)",
    )
    _output(parser, "autofit.html", "file to write, - for stdout (default: %(default)s)")
    suffix = "format of the report (default: that of FILE's suffix; Markdown on stdout)"
    parser.add_argument("--format", choices=("html", "md", "json"), help=suffix)
    several = "search to show, if the study holds several (default: the newest)"
    parser.add_argument("--name", metavar="NAME", help=several)
    _add(parser, "--force")


def export(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit export`."""
    _add(parser, "plan")
    parser.add_argument(
        "--to",
        metavar="NAME",
        default="python",
        help="export format: python, huggingface, accelerate, lightning, deepspeed, torchtitan, axolotl, or one that "
        "another package adds (default: %(default)s)",
    )
    version = "version of the framework to export for (default: the installed one, or else the newest that is known)"
    parser.add_argument("--target-version", metavar="VERSION", help=version)
    _output(parser, None, "file to write (default: stdout)")
    _add(parser, "--force")


def nightly(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly`."""
    jobs = "jobs file, which `autofit nightly init` writes (default: %(default)s)"
    parser.add_argument("jobs", metavar="FILE", nargs="?", default=JOBS_FILE, help=jobs)
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--job",
        **_REPEATED,
        dest="only",
        metavar="NAME",
        help="check this job alone, as each task of a Slurm array or Kubernetes job does. May be repeated (default: "
        "all, the longest unchecked first)",
    )
    on = "run each job as a task of the Ray cluster (default: one after the other, here). Needs the extra `ray`"
    what.add_argument("--on", choices=("ray",), help=on)
    what.add_argument(
        "--time",
        metavar="TIME",
        help="time for the whole night: 4h, 90min (default: that of the jobs file). Jobs that were not reached come "
        "first in the next night",
    )
    order = "say what would be checked, in which order and why, with the last verdicts"
    what.add_argument("--dry-run", action="store_true", help=order)
    output = parser.add_argument_group("output")
    output.add_argument("--markdown", metavar="FILE", help="also write Markdown, for a pull request or a job summary")
    page = "also write the history of all jobs as one HTML page that needs no network"
    output.add_argument("--html", metavar="FILE", help=page)
    _add(output, "--force", help="replace the files of --markdown and --html even if autofit did not write them")
    output.add_argument(
        "--fail-on",
        choices=("regression", "change", "never"),
        default="regression",
        help="which verdicts give exit code 4: regression (default; also a plan that does not run), change (also a "
        "faster or better plan, or another environment), or never. Errors have their exit codes in any case; of "
        "several jobs, the worst one counts",
    )


def nightly_init(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly init`."""
    _add(parser, "target")
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: that of the file or module)")
    _add(parser, "--device", "--global-batch", "--memory")
    _add(parser, "--time", default=None, help="time for tuning the job again: 10min, 1h")
    _output(parser, JOBS_FILE, "file to write, - for stdout (default: %(default)s)")
    _add(parser, "--force", help="replace FILE if it exists")


def nightly_accept(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit nightly accept`."""
    parser.add_argument("job", metavar="JOB", help="name of the job")
    parser.add_argument("--jobs", metavar="FILE", default=JOBS_FILE, help="jobs file (default: %(default)s)")
    parser.add_argument(
        "--level",
        action="store_true",
        help="accept the present speed and memory of the job instead, so that nights no longer report its open "
        "regression. The plan stays",
    )


def completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `autofit completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
