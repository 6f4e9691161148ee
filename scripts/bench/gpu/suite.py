"""Everything that needs a real GPU, in stages of at most 9 minutes each, as one command.

Must be installed for the Python that runs it (PYTHON=... chooses one; no network is needed):
  torch >= 2.11 with CUDA, optuna >= 5, pydantic >= 2.7, tqdm, PyYAML, pytest
Optional; what is missing is said in the results:
  lightning or pytorch-lightning, accelerate (peers), transformers (an example), pytest-timeout, nvidia-ml-py

  scripts/gpu_suite --out results               # all stages; called again it goes on where it was
  scripts/gpu_suite --out results --stages steps,grid-gpt
  scripts/gpu_suite --out dry --device cpu      # a dry run with tiny models: its figures mean nothing

Each stage writes DIR/STAGE.json (figures with device and versions) and DIR/STAGE.log; DIR/SUMMARY.md is for people. A
finished stage is not run again, one that was cut short goes on, one that broke is run again; the others go on anyway.

Stages ("grid" stands for all that begin with "grid-"):
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpu import summary

ROOT = Path(__file__).resolve().parents[3]
NEEDED = {"torch": "torch", "optuna": "optuna", "pydantic": "pydantic", "tqdm": "tqdm", "yaml": "PyYAML",
          "pytest": "pytest"}  # fmt: skip
OPTIONAL = ("lightning", "pytorch_lightning", "accelerate", "transformers", "pynvml")
INNER_RATIO = 0.92
"""A stage is told to stop by itself after this share of the limit; the rest is for starting and for its last step."""
DONE = ("ok", "missed")
UNFINISHED = 75
STATE = "suite.json"


@dataclass(frozen=True)
class Stage:
    """One program of the suite.

    Attributes:
        name: what `--stages` calls it.
        about: what it does, in a line.
        command: the module and its arguments, or a script, after `python`.
    """

    name: str
    about: str
    command: tuple[str, ...]


def _stage(name: str, about: str, module: str, *arguments: str) -> Stage:
    return Stage(name, about, ("-m", f"gpu.{module}", *arguments))


MODELS = ("gpt", "convnet", "mlp")
STAGES = (
    _stage("tests-real", "tests/cuda: the tests that need true values or times", "tests", "real"),
    _stage("tests-shared", "tests/cuda: the tests that a phantom GPU passes too", "tests", "shared"),
    _stage("steps", "memory of the same steps on a phantom and here", "steps"),
    *(_stage(f"grid-{model}", f"tune() of {model} against a complete grid", "grid", model) for model in MODELS),
    _stage("prediction", "the estimators against the recorded grids", "prediction"),
    *(_stage(f"peers-{model}", f"batch-size finders on {model}", "peers", model) for model in MODELS),
    _stage("soak", "five minutes of the proven plan at its budget", "soak"),
)


@dataclass
class Result:
    """What became of a stage.

    Attributes:
        status: "ok", "missed" (done, with a required figure missed), "unfinished", "timed out" or "broken".
        seconds: how long the last call took.
        line: the last line that it said.
    """

    status: str
    seconds: float
    line: str


class Suite:
    """Runs stages and keeps what became of them in DIR.

    Args:
        out: the folder.
        limit_s: seconds for each stage.
        arguments: given to every stage.
    """

    def __init__(self, out: Path, limit_s: float, arguments: Sequence[str]) -> None:
        self.out, self._limit_s, self._arguments = out, limit_s, tuple(arguments)
        self.results: dict[str, Result] = {}

    def resume(self, where: Mapping[str, Any]) -> str | None:
        """Takes over the results of earlier calls; returns why they are of something else, or None."""
        state = self.out / STATE
        self._where = dict(where)
        if not state.exists():
            return None
        known = json.loads(state.read_text(encoding="utf-8"))
        differs = [name for name in where if known["where"].get(name) != where[name]]
        if differs:
            told = ", ".join(f"{name} {where[name]}, there {known['where'].get(name)}" for name in differs)
            return f"{self.out} holds results of another machine ({told}). Give another --out."
        self.results = {name: Result(**result) for name, result in known["results"].items()}
        return None

    def run(self, stages: Sequence[Stage]) -> bool:
        """Runs the stages that are not done, in order; returns whether all are done with nothing missed."""
        for stage in stages:
            known = self.results.get(stage.name)
            if known is not None and known.status in DONE:
                print(f"== {stage.name}: done before: {known.line}", flush=True)
                continue
            print(f"== {stage.name}: {stage.about}", flush=True)
            self.results[stage.name] = result = self._run_one(stage)
            print(f"{result.line}\n   {result.status} after {result.seconds:.0f} s", flush=True)
            self._save()
        return all(self.results[stage.name].status == "ok" for stage in stages)

    def _run_one(self, stage: Stage) -> Result:
        figures, log = self.out / f"{stage.name}.json", self.out / f"{stage.name}.log"
        figures.unlink(missing_ok=True)
        inner = str(round(INNER_RATIO * self._limit_s, 1))
        command = [sys.executable, *stage.command, "--out", str(self.out), "--json", str(figures), "--limit-s", inner]
        began = time.monotonic()
        with log.open("w", encoding="utf-8") as sink:
            code = _run([*command, *self._arguments], sink, self._limit_s)
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return Result(_status(code, figures.exists()), time.monotonic() - began, lines[-1] if lines else "said nothing")

    def _save(self) -> None:
        state = {"where": self._where, "results": {name: asdict(result) for name, result in self.results.items()}}
        (self.out / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
        summary.write(self.out, state)


def _run(command: Sequence[str], sink: Any, limit_s: float) -> int | None:
    """Returns the exit code, or None when the limit ended it; no process of its group is left behind."""
    with subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _status(code: int | None, has_figures: bool) -> str:
    if code is None:
        return "timed out"
    if code == UNFINISHED:
        return "unfinished"
    if code in (0, 1) and has_figures:
        return DONE[code]
    return "broken"


def chosen(text: str | None, stages: Sequence[Stage]) -> list[Stage]:
    """Returns the stages that `text` names, in the suite's order.

    Raises:
        ValueError: there is no such stage.
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


def missing() -> list[str]:
    """Returns the names of the needed packages that this Python does not have."""
    return [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]


def machine(device: str) -> dict[str, Any] | str:
    """Returns device and versions, or why there is no such device; asked in a process that ends, as a stage does."""
    code = (
        "import json, sys, _report\nfrom autofit.core.errors import UsageError\n"
        "try: print(json.dumps(_report.where(sys.argv[1])))\n"
        "except UsageError as error: sys.exit(str(error))"
    )
    done = subprocess.run([sys.executable, "-c", code, device], capture_output=True, text=True, check=False)
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode == 0:
        return dict(json.loads(lines[-1]))
    return lines[-1] if lines else f"the check of the device ended with code {done.returncode}"


def _parser(stages: Sequence[Stage]) -> argparse.ArgumentParser:
    about = (__doc__ or "") + "\n".join(f"  {stage.name:16s}{stage.about}" for stage in stages)
    found = argparse.ArgumentParser(
        prog="scripts/gpu_suite", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--out", metavar="DIR", type=Path, required=True, help="where results go, and are found again")
    found.add_argument("--stages", metavar="A,B", help="only these; default: all")
    found.add_argument("--limit-s", type=float, default=540, help="seconds for each stage (default: 540)")
    found.add_argument("--device", default="cuda", help='"cuda", "cuda:1"; "cpu" for a dry run')
    return found


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Runs the suite and returns its exit code: 0 all well, 1 something missed, broken or unfinished, 2 usage."""
    parser = _parser(stages)
    given = parser.parse_args(arguments)
    try:
        wanted = chosen(given.stages, stages)
    except ValueError as error:
        parser.error(str(error))
    if given.limit_s <= 0:
        parser.error(f"--limit-s is {given.limit_s:g}; expected more than 0 seconds")
    if lacking := missing():
        return _refuse(f"not installed for {sys.executable}: {', '.join(lacking)}; --help says what is needed")
    where = machine(given.device)
    if isinstance(where, str):
        return _refuse(f"{where} To try the suite without a GPU: --device cpu.")
    given.out.mkdir(parents=True, exist_ok=True)
    out = given.out.resolve()
    suite = Suite(out, given.limit_s, ["--device", given.device])
    absent = [name for name in OPTIONAL if importlib.util.find_spec(name) is None]
    print(f"gpu_suite: {where['device']}, torch {where['torch']}; optional and not installed: "
          f"{', '.join(absent) or 'none'}", flush=True)  # fmt: skip
    objection = suite.resume(where)
    if objection is not None:
        return _refuse(objection)
    try:
        passed = suite.run(wanted)
    except KeyboardInterrupt:
        return _refuse("interrupted; the same command goes on where it was", 130)
    counts = [f"{[r.status for r in suite.results.values()].count(status)} {status}"
              for status in dict.fromkeys(r.status for r in suite.results.values())]  # fmt: skip
    print(f"gpu_suite: {', '.join(counts)}; see {out / summary.NAME}", flush=True)
    return 0 if passed else 1


def _refuse(message: str, code: int = 2) -> int:
    print(f"gpu_suite: {message}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
