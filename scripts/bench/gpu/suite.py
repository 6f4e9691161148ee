"""Runs everything that needs a real GPU, in stages of at most 9 minutes each.

Required packages of the Python that runs it (PYTHON=... chooses one; no network is needed):
  torch >= 2.11 with CUDA, tqdm, PyYAML, pytest,
  optuna >= 5 with its dependencies (sqlalchemy, alembic, colorlog, packaging, mako),
  pydantic >= 2.7 with its dependencies (pydantic_core, annotated_types, typing_inspection)
Optional; missing ones are listed in the results:
  lightning or pytorch-lightning, accelerate (peers), transformers (an example), pytest-timeout, nvidia-ml-py

  scripts/gpu_suite --out results               # all stages; the same command continues
  scripts/gpu_suite --out results --stages steps,grid-gpt
  scripts/gpu_suite --out results --quick --total-s 580    # on a GPU lent for minutes: the most telling stages first
  scripts/gpu_suite --out dry --device cpu      # a dry run with tiny models: its figures mean nothing

Each stage writes DIR/STAGE.json (figures with device and versions) and DIR/STAGE.log; DIR/SUMMARY.md is the readable
summary. A later call skips finished stages, continues interrupted stages and repeats broken ones. A broken stage does
not stop the others. Tests that failed or were interrupted run again in full, after the other stages. No stage outlives
the suite.

Stages ("grid" stands for all that begin with "grid-"):
"""

import argparse
import importlib.util
import json
import math
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.bench import files
from scripts.bench.gpu import processes, summary
from scripts.bench.gpu.preflight import machine

OPTIONAL = ("lightning", "pytorch_lightning", "accelerate", "transformers", "pynvml")
INNER_RATIO = 0.92
"""Share of the limit after which a stage stops by itself; the rest is for starting it and for its last step."""
DONE = ("ok", "missed")
UNFINISHED = 75
LEAST_S = 60.0
"""A stage is not started if less than this is left of `--total-s`, in seconds."""
STATE = "suite.json"


@dataclass(frozen=True)
class Stage:
    """One program of the suite.

    Attributes:
        name: name for `--stages`.
        about: description in one line.
        command: the module and its arguments, or a script, after `python`.
        limit_s: most seconds for this stage, in addition to the limit of the suite.
        again: whether it starts again after a miss: the code under test may have been fixed.
    """

    name: str
    about: str
    command: tuple[str, ...]
    limit_s: float = math.inf
    again: bool = False


def _stage(name: str, about: str, module: str, *arguments: str, limit_s: float = math.inf) -> Stage:
    return Stage(name, about, ("-m", f"scripts.bench.gpu.{module}", *arguments), limit_s, again=module == "tests")


MODELS = ("gpt", "convnet", "mlp")
ARCHITECTURES = ("gpt2", "resnet50", "vit")
VARIED = ("language", "texts", "images")
STAGES = (
    _stage("tests-real", "tests/cuda: the tests that need true values or times", "tests", "real"),
    _stage("tests-shared", "tests/cuda: the tests that a phantom GPU passes too", "tests", "shared"),
    _stage("steps", "memory of the same steps on a phantom and here", "steps"),
    *(_stage(f"grid-{model}", f"tune() of {model} against a complete grid", "grid", model) for model in MODELS),
    _stage("estimates", "the estimators, and traces, against the recorded grids", "estimates"),
    *(_stage(f"peers-{model}", f"batch-size finders on {model}", "peers", model) for model in MODELS),
    *(_stage(f"gain-{name}", f"{name} against the baseline and plans by hand", "gain", name) for name in ARCHITECTURES),
    *(
        _stage(f"anytime-{name}", f"{name} in 120 s against recipes by hand", "anytime", name)
        for name in ("convnext", "llama", "swin", "t5")
    ),
    *(_stage(f"strategies-{name}", f"every strategy once on {name}", "strategies", name) for name in VARIED),
    _stage("doctor", "the doctor's sizes, cost and findings on full architectures", "doctor", limit_s=480),
    _stage("soak", "five minutes of the proven plan at its budget", "soak"),
)
QUICK = (
    _stage("tests-real", "the tests that need true values or times", "tests", "real", limit_s=120),
    _stage("gain-gpt2", "gpt2 against the baseline and plans by hand", "gain", "gpt2", limit_s=200),
    _stage("gain-resnet50", "resnet50 against the baseline and plans by hand", "gain", "resnet50", limit_s=180),
    _stage("strategies-language", "every strategy once on a language model", "strategies", "language", limit_s=170),
    _stage("strategies-texts", "every strategy once on texts of many lengths", "strategies", "texts", limit_s=90),
    _stage("strategies-images", "every strategy once on a network for images", "strategies", "images", limit_s=90),
    _stage("steps", "memory of the same steps on a phantom and here", "steps", limit_s=120),
    _stage("grid-gpt", "tune() of gpt against a grid of one round", "grid", "gpt", "--rounds", "1", limit_s=400),
    _stage("estimates", "footprints against traces", "estimates", limit_s=120),
    _stage("doctor", "the doctor's sizes, cost and findings on full architectures", "doctor", limit_s=240),
    _stage("soak", "two minutes of the proven plan at its budget", "soak", "--seconds", "120", limit_s=240),
)


@dataclass
class Result:
    """Result of a stage.

    Attributes:
        status: "ok", "missed" (done, with a required figure missed), "unfinished", "timed out" or "broken".
        seconds: duration of the last call.
        line: the last line of its output.
    """

    status: str
    seconds: float
    line: str


class Suite:
    """Runs stages and keeps their results in a folder.

    Args:
        out: the folder.
        limit_s: seconds for each stage.
        arguments: passed to every stage.
        ends_at: time of `time.monotonic()` at which all stages must have ended.
    """

    def __init__(self, out: Path, limit_s: float, arguments: Sequence[str], ends_at: float = math.inf) -> None:
        self.out, self._limit_s, self._arguments, self._ends_at = out, limit_s, tuple(arguments), ends_at
        self.results: dict[str, Result] = {}

    def resume(self, where: Mapping[str, Any]) -> str | None:
        """Loads the results of earlier calls; returns the reason why they belong to another machine, or None."""
        state = self.out / STATE
        self._where = dict(where)
        known = files.read(state)
        if known is None:
            return None
        differs = [name for name in where if known["where"].get(name) != where[name]]
        if differs:
            differences = ", ".join(f"{name} {where[name]}, there {known['where'].get(name)}" for name in differs)
            return f"{self.out} holds results of another machine ({differences}). Give another --out."
        self.results = {name: Result(**result) for name, result in known["results"].items()}
        return None

    def run(self, stages: Sequence[Stage]) -> bool:
        """Runs the unfinished stages in order; returns whether all are finished and nothing was missed."""
        # Tests that ran before start again, after the others: the device may be available for minutes only.
        for stage in sorted(stages, key=lambda stage: stage.again and stage.name in self.results):
            known = self.results.get(stage.name)
            if known is not None and known.status in DONE and not (stage.again and known.status == "missed"):
                print(f"== {stage.name}: done before: {known.line}", flush=True)
                continue
            limit_s, left_s = min(self._limit_s, stage.limit_s), self._ends_at - time.monotonic()
            if left_s < min(LEAST_S, limit_s):
                print(f"== {stage.name}: not started: {max(left_s, 0):.0f} s of --total-s are left", flush=True)
                continue
            print(f"== {stage.name}: {stage.about}", flush=True)
            self.results[stage.name] = result = self._run_one(stage, min(limit_s, left_s))
            print(f"{result.line}\n   {result.status} after {result.seconds:.0f} s", flush=True)
            self._save()
        return all(stage.name in self.results and self.results[stage.name].status == "ok" for stage in stages)

    def _run_one(self, stage: Stage, limit_s: float) -> Result:
        figures, log = self.out / f"{stage.name}.json", self.out / f"{stage.name}.log"
        figures.unlink(missing_ok=True)
        inner = str(round(INNER_RATIO * limit_s, 1))
        command = [sys.executable, *stage.command, "--out", str(self.out), "--json", str(figures), "--limit-s", inner]
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as sink:
            code = processes.run([*command, *self._arguments], sink, limit_s)
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return Result(_status(code, figures.exists()), time.monotonic() - began, lines[-1] if lines else "no output")

    def _save(self) -> None:
        state = {"where": self._where, "results": {name: asdict(result) for name, result in self.results.items()}}
        files.write(self.out / STATE, json.dumps(state, indent=1) + "\n")
        summary.write(self.out, state)


def _status(code: int | None, has_figures: bool) -> str:
    if code is None:
        return "timed out"
    if code == UNFINISHED:
        return "unfinished"
    if code in (0, 1) and has_figures:
        return DONE[code]
    return "broken"


def chosen(text: str | None, stages: Sequence[Stage]) -> list[Stage]:
    """Returns the stages named in `text`, in the order of the suite.

    Raises:
        ValueError: a stage does not exist.
    """
    if text is None:
        return list(stages)
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if not any(_named(stage, name) for stage in stages):
            raise ValueError(f"no stage {name!r}; expected some of {', '.join(stage.name for stage in stages)}")
    return [stage for stage in stages if any(_named(stage, name) for name in wanted)]


def _named(stage: Stage, name: str) -> bool:
    return name in (stage.name, stage.name.partition("-")[0])


def _parser(stages: Sequence[Stage]) -> argparse.ArgumentParser:
    about = (__doc__ or "") + "\n".join(f"  {stage.name:20s}{stage.about}" for stage in stages)
    about += (
        "\n\n--quick runs these in this order, each with its own limit; a full run skips those that finished here:\n"
    )
    about += "\n".join(f"  {stage.name:20s}{stage.about}, at most {stage.limit_s:.0f} s" for stage in QUICK)
    found = argparse.ArgumentParser(
        prog="scripts/gpu_suite", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "--out", metavar="DIR", type=Path, required=True, help="folder for the results; an existing one is continued"
    )
    found.add_argument("--stages", metavar="A,B", help="only these; default: all")
    found.add_argument("--quick", action="store_true", help="fewer and shorter stages, see above")
    found.add_argument("--limit-s", type=float, default=540, help="seconds for each stage (default: 540)")
    found.add_argument(
        "--total-s", metavar="SECONDS", type=float, default=math.inf,
        help="seconds for all stages; none is started with less than a minute left (default: no limit)"
    )  # fmt: skip
    found.add_argument("--device", default="cuda", help='"cuda", "cuda:1"; "cpu" for a dry run')
    return found


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Runs the suite; returns 0 if all is well, 1 if a stage was missed, broken or unfinished, 2 for wrong usage."""
    began, parser = time.monotonic(), _parser(stages)
    given = parser.parse_args(arguments)
    try:
        wanted = chosen(given.stages, QUICK if given.quick else stages)
    except ValueError as error:
        parser.error(str(error))
    for name, seconds in (("--limit-s", given.limit_s), ("--total-s", given.total_s)):
        if not seconds > 0:
            parser.error(f"{name} is {seconds:g}; expected more than 0 seconds")
    modules = dict.fromkeys(stage.command[1] for stage in wanted if stage.command[0] == "-m")
    where = machine(given.device, tuple(modules))
    if isinstance(where, str):
        return _refuse(where)
    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    suite = Suite(out, given.limit_s, ["--device", given.device], began + given.total_s)
    absent = [name for name in OPTIONAL if importlib.util.find_spec(name) is None]
    print(f"gpu_suite: {where['device']}, torch {where['torch']}; optional and not installed: "
          f"{', '.join(absent) or 'none'}", flush=True)  # fmt: skip
    objection = suite.resume(where)
    if objection is not None:
        return _refuse(objection)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM ends the stage as Ctrl-C does
    try:
        passed = suite.run(wanted)
    except KeyboardInterrupt:
        return _refuse("interrupted; the same command continues", 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    counts = [f"{[r.status for r in suite.results.values()].count(status)} {status}"
              for status in dict.fromkeys(r.status for r in suite.results.values())]  # fmt: skip
    print(f"gpu_suite: {', '.join(counts)}; see {out / summary.NAME}", flush=True)
    return 0 if passed else 1


def _refuse(message: str, code: int = 2) -> int:
    print(f"gpu_suite: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
