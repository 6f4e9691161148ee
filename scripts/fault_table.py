"""Runs the tests of the fault matrix, and writes their results into examples/docs/pages/faults.md.

    python -m scripts.fault_table

A test names the rows whose faults it injects: `@pytest.mark.fault("F12")`. The rows are in tests/faults/matrix.yaml.
Tests in tests/cuda run on the phantom GPU, where one can be built (scripts/test-cuda-phantom).
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
import yaml

ROOT = Path(__file__).parents[1]
MATRIX = ROOT / "tests" / "faults" / "matrix.yaml"
PAGE = ROOT / "examples" / "docs" / "pages" / "faults.md"
ON_GPU = "tests/cuda/"
INTRODUCTION = """\
# Faults

What goes wrong while a training is tuned, what `autofit` then does, and the tests that inject each fault. The table is
made from a run of these tests by `python -m scripts.fault_table`. The last run was made with torch {torch} on {system}.

Tests in `tests/cuda` ran on a phantom GPU, which has the allocator and the errors of CUDA and computes nothing. On a
machine with a GPU, `scripts/gpu_suite` runs them there. {counts}

| row | fault | how it is injected | what must happen | tests | result |
|---|---|---|---|---|---|
"""


def matrix() -> dict[str, dict[str, str]]:
    """Returns the rows by their ids: fault, injected, expected, and what cannot be tested here, if anything."""
    rows: dict[str, dict[str, str]] = yaml.safe_load(MATRIX.read_text(encoding="utf-8"))
    return rows


def marked_tests() -> dict[str, list[str]]:
    """Returns the tests of each row, such as "tests/faults/test_deadlines.py::test_f50_...", from their source."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "mark.fault(" in text else ():
            if isinstance(node, ast.FunctionDef):
                for row in rows_of(node):
                    found.setdefault(row, []).append(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return found


def rows_of(function: ast.FunctionDef) -> list[str]:
    """Returns the rows that a function's decorators name."""
    calls = [each for each in function.decorator_list if isinstance(each, ast.Call)]
    names = [each for each in calls if ast.unparse(each.func) == "pytest.mark.fault"]
    return [ast.literal_eval(argument) for call in names for argument in call.args]


def results_of(files: Iterable[Path]) -> dict[str, Counter[str]]:
    """Returns how often each test function had which result, from files that pytest wrote with `--junitxml`."""
    found: dict[str, Counter[str]] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase") if file.exists() else ():
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '').partition('[')[0]}"
            found.setdefault(name, Counter())[result_of(case)] += 1
    return found


def result_of(case: ElementTree.Element) -> str:
    """Returns "passed", "failed", or "skipped: " and the reason."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    return "passed" if skipped is None else f"skipped: {skipped.get('message', '')}"


def verdict(tests: Iterable[str], results: Mapping[str, Counter[str]]) -> str:
    """Returns the results of a row's tests together: "12 passed; 1 skipped: needs true values"."""
    counts = sum((results.get(test, Counter({"not run": 1})) for test in tests), Counter[str]())
    return "; ".join(f"{number} {what}" for what, number in sorted(counts.items()))


def line_of(row: str, about: Mapping[str, str], tests: Iterable[str]) -> str:
    """Returns the line of a row without its result."""
    named = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in tests)
    cells = [row, about["fault"], about["injected"], about["expected"], named]
    return "| " + " | ".join(cells) + " | "


def page(results: Mapping[str, Counter[str]]) -> str:
    """Returns the page."""
    rows, tests = matrix(), marked_tests()
    lines = []
    for row, about in rows.items():
        missing = f". Not tested: {about['not_tested']}" if "not_tested" in about else ""
        lines.append(f"{line_of(row, about, tests.get(row, ()))}{verdict(tests.get(row, ()), results)}{missing} |")
    functions = {test for each in tests.values() for test in each}
    there = sum(test.startswith(ON_GPU) for test in functions)
    counts = f"{len(rows)} rows have {len(functions)} tests, {there} of them in `tests/cuda`."
    about_run: dict[str, Any] = {"torch": torch.__version__, "system": sys.platform, "counts": counts}
    return INTRODUCTION.format(**about_run) + "\n".join(lines) + "\n"


def run(folder: Path, processes: int) -> list[Path]:
    """Runs the marked tests; returns the files with their results."""
    files = sorted({test.partition("::")[0] for tests in marked_tests().values() for test in tests})
    there = [file for file in files if file.startswith(ON_GPU)]
    words = ["-q", "-m", "fault", "-p", "no:cacheprovider"]
    host, gpu = folder / "host.xml", folder / "gpu.xml"
    on_host = [sys.executable, "-m", "pytest", *words, "-n", str(processes), f"--junitxml={host}"]
    subprocess.run([*on_host, *(file for file in files if file not in there)], cwd=ROOT, check=False)
    subprocess.run(["scripts/test-cuda-phantom", *words, f"--junitxml={gpu}", *there], cwd=ROOT, check=False)
    return [host, gpu]


def main() -> int:
    """Writes the page; returns 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="processes that run tests (all cores)")
    with tempfile.TemporaryDirectory() as folder:
        text = page(results_of(run(Path(folder), parser.parse_args().processes)))
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} written")
    return int(bool(re.search(r"\d (failed|not run)", text)))


if __name__ == "__main__":
    raise SystemExit(main())
