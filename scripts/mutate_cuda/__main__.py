"""Disables each check of the CUDA path in turn and requires that a test on the phantom GPU fails.

    scripts/mutate-cuda                                        # in the environment of the CUDA tests
    scripts/mutate-cuda --phantom DIR --python PYTHON          # faster, with a phantom that is already built
    scripts/mutate-cuda --only "no retries" --json out.json

Each mutation replaces one text, which must occur exactly once, in a copy of this checkout. The tests that are likely to
notice it run first. A table shows which test noticed it; the last line is a summary. The exit code is 1 if a mutation
was not noticed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from scripts.mutate_cuda import cuda, nvml
from scripts.mutate_cuda.mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("autofit", "examples", "scripts", "tests", "pyproject.toml", "README.md")
MUTATIONS = (*cuda.MUTATIONS, *nvml.MUTATIONS)
TESTS = ("tests/cuda", "tests/devices/test_cuda.py", "tests/devices/test_nvml.py")


@dataclass(frozen=True)
class Result:
    """Result of a mutation: `killed`, `survived`, or `broken` if the tests could not be collected."""

    name: str
    status: str
    by: str
    seconds: float


def copy_to(folder: Path) -> None:
    """Copies the parts of this checkout that the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, folder / name)


def mutated(mutation: Mutation, folder: Path) -> str:
    """Writes the mutation into the copy and returns the original text.

    Raises:
        SystemExit: the text to replace does not occur exactly once.
    """
    path = folder / mutation.file
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutation.old)) != 1:
        sys.exit(
            f"mutate-cuda: {mutation.file} has this {times} times; expected once: {mutation.old!r} ({mutation.name})"
        )
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return text


def path(likely: str) -> str:
    """Returns the path of a test file."""
    return likely if "/" in likely else f"tests/cuda/test_{likely}.py"


def run(tests: Sequence[str], folder: Path, given: argparse.Namespace) -> tuple[str, str, float]:
    """Runs tests in the copy until one fails; returns the status, the failed test, and seconds."""
    pytest = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    if given.phantom:
        start = [given.python, "tests/phantom/run.py", "--phantom", given.phantom, "--", given.python, "-m", "pytest"]
    else:
        start = ["scripts/test-cuda-phantom"]
    began = perf_counter()
    done = subprocess.run(
        [*start, *pytest], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    seconds = perf_counter() - began
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    by = found.group(1) if found else " ".join((done.stdout + done.stderr).strip().splitlines()[-1:])
    status = {0: "survived", 1: "killed"}.get(done.returncode, "broken")
    if done.returncode == 0 and not re.search(r"\b[1-9]\d* passed", done.stdout):
        status, by = "broken", "no test ran"
    return status, "" if status == "survived" else by, seconds


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of the tests, in which the copy comes before an installed package."""
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    """Runs the selected mutations; prints a table and a summary line."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutate-cuda", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--phantom", metavar="DIR", help="a phantom that tests/phantom/build.py has built")
    parser.add_argument(
        "--python", default=sys.executable, help="the Python with the CUDA build of torch, for --phantom"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="mutations whose name contains this")
    parser.add_argument("--check", action="store_true", help="only check that each text occurs exactly once")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results to this file")
    given = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if given.only in mutation.name]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        for mutation in chosen:
            original = mutated(mutation, folder)
            (folder / mutation.file).write_text(original, encoding="utf-8")
        if not given.check:
            check_unmutated(chosen, folder, given)
        results = [] if given.check else [tried(mutation, folder, given) for mutation in chosen]
    if given.json:
        given.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")
    missed = [result for result in results if result.status != "killed"]
    if given.check:
        print(f"{len(chosen)} mutations, each of a text that occurs once")
    else:
        print(f"{len(chosen)} mutations: {len(results) - len(missed)} noticed, {len(missed)} not")
    return 1 if missed else 0


def check_unmutated(chosen: Sequence[Mutation], folder: Path, given: argparse.Namespace) -> None:
    """Runs the likely tests without any mutation, so that a later failure is due to the mutation.

    Raises:
        SystemExit: one of them fails, or none ran.
    """
    status, by, seconds = run(sorted({path(likely) for each in chosen for likely in each.likely}), folder, given)
    if status != "survived":
        sys.exit(f"mutate-cuda: the tests fail without any mutation, so they cannot judge one: {by}")
    print(f"passed    {seconds:5.0f} s  without any mutation", flush=True)


def tried(mutation: Mutation, folder: Path, given: argparse.Namespace) -> Result:
    """Returns and prints the result of a mutation."""
    original, seconds = mutated(mutation, folder), 0.0
    try:
        # In separate calls: pytest runs a file that is named together with its folder in the order of the folder.
        for tests in (*((path(likely),) for likely in mutation.likely), TESTS):
            status, by, took = run(tests, folder, given)
            seconds += took
            if status != "survived":
                break
    finally:
        (folder / mutation.file).write_text(original, encoding="utf-8")
    print(f"{status:9} {seconds:5.0f} s  {mutation.name:75} {by}", flush=True)
    return Result(mutation.name, status, by, round(seconds, 1))


if __name__ == "__main__":
    sys.exit(main())
