#!/usr/bin/env python3
"""Disables each check of the CUDA path in turn and demands that a test of the phantom lane fails.

    scripts/mutate-cuda                                        # in the lane's own environment
    scripts/mutate-cuda --phantom DIR --python PYTHON          # with a phantom that is built already: faster
    scripts/mutate-cuda --only "no retries" --json out.json

Each mutation replaces one text, which must be there exactly once, in a copy of this checkout. The tests that are likely
to notice run first. A table says which test noticed; the last line sums up. Exit code 1 when a mutation went unnoticed.
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

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("autofit", "examples", "scripts", "tests", "pyproject.toml", "README.md")
TESTS = ("tests/cuda", "tests/devices/test_cuda.py", "tests/devices/test_nvml.py")
ACCELERATOR, CUDA, NVML = (f"autofit/devices/{name}.py" for name in ("accelerator", "cuda", "nvml"))


@dataclass(frozen=True)
class Mutation:
    """One check that is disabled.

    Attributes:
        name: what no longer happens.
        file: where.
        old: the text, there exactly once.
        new: what stands there instead.
        likely: at least one test file (`budget` for tests/cuda/test_budget.py, or a path) that runs before all others.
    """

    name: str
    file: str
    old: str
    new: str
    likely: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What became of a mutation: `killed`, `survived`, or `broken` when the tests could not even be collected."""

    name: str
    status: str
    by: str
    seconds: float


def in_accelerator(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, ACCELERATOR, old, new, likely)


def in_cuda(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, CUDA, old, new, likely)


def in_nvml(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, NVML, old, new, likely)


MUTATIONS = (
    in_accelerator(
        "shared memory: the machine's is not the limit",
        "return min(total, host_memory.capacity()) if self.is_integrated else total",
        "return total",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "shared memory: the driver's 'free' is believed",
        "told = host_memory.available() if self.is_integrated else None",
        "told = None",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "what this process holds is not available to it",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "min(free + outside, self.capacity_bytes())",
        "headroom",
    ),
    in_accelerator(
        "what lies outside the allocator is not available to this process",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "min(free + self._reserved_bytes(), self.capacity_bytes())",
        "device_checks",
        "headroom",
    ),
    in_accelerator(
        "more than the device has is available",
        "min(free + self._reserved_bytes() + outside, self.capacity_bytes())",
        "free + self._reserved_bytes() + outside",
        "headroom",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "the user's own limit is not seen in what is available",
        "return found if fraction >= 1 else min(found, int(fraction * self.fraction_base()) + outside)",
        "return found",
        "headroom",
    ),
    in_accelerator(
        "shared memory: 'used' is taken to be the context",
        "        if self.is_integrated:\n            return CONTEXT_BYTES\n",
        "",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator(
        "the context is not counted",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return 0",
        "footprint",
    ),
    in_accelerator(
        "other processes' memory is counted as this one's",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return max(total - free - self._reserved_bytes(), 0)",
        "footprint",
        "processes",
    ),
    in_accelerator(
        "a driver that reports too much free makes the outside negative",
        "return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)",
        "return min(total - free - self._reserved_bytes(), CONTEXT_BYTES)",
        "tune_faults",
    ),
    in_accelerator(
        "the device is not waited for", "torch.accelerator.synchronize(self.torch_device)", "return", "poison", "meter"
    ),
    in_accelerator("the cache is kept", "torch.accelerator.empty_cache()", "return", "out_of_memory", "leaks"),
    in_accelerator(
        "no out-of-memory is counted", 'ooms=int(stats.get("num_ooms", 0))', "ooms=0", "budget", "out_of_memory"
    ),
    in_accelerator("no retry is counted", 'retries=int(stats.get("num_alloc_retries", 0))', "retries=0", "budget"),
    in_accelerator(
        "a run before is metered too",
        "        torch.accelerator.reset_peak_memory_stats(self.torch_device)\n",
        "",
        "meter",
    ),
    in_accelerator(
        "memory is read before the work is done",
        "        yield reading\n        self.synchronize()\n",
        "        yield reading\n",
        "poison",
        "meter",
    ),
    in_accelerator(
        "what is reserved in the end stands for the peak",
        'reserved = int(stats.get("reserved_bytes.all.peak", 0))',
        'reserved = int(stats.get("reserved_bytes.all.current", 0))',
        "device_checks",
    ),
    in_accelerator(
        "what is live in the end stands for the peak",
        'allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0))',
        'allocated_bytes=int(stats.get("allocated_bytes.all.current", 0))',
        "meter",
    ),
    in_accelerator(
        "the footprint is what is reserved",
        "footprint = reserved + self.outside_bytes()",
        "footprint = reserved",
        "footprint",
    ),
    in_accelerator(
        "what is reserved is judged", "judged_bytes=footprint", "judged_bytes=reserved", "budget", "footprint"
    ),
    in_accelerator(
        "a plan's retries are not told",
        "allocator_retries=after.retries - before.retries",
        "allocator_retries=0",
        "meter",
    ),
    in_accelerator(
        "retries of other runs are a plan's",
        "allocator_retries=after.retries - before.retries",
        "allocator_retries=after.retries",
        "meter",
    ),
    in_accelerator(
        "a plan's hidden out-of-memory is not told",
        "swallowed_ooms=after.ooms - before.ooms",
        "swallowed_ooms=0",
        "meter",
    ),
    in_accelerator(
        "out-of-memory of other runs is a plan's",
        "swallowed_ooms=after.ooms - before.ooms",
        "swallowed_ooms=after.ooms",
        "meter",
    ),
    in_accelerator("nothing is limited", "self._set_fraction(min(wanted, before))", "pass", "budget"),
    in_accelerator(
        "a lower limit of the user's is lifted",
        "self._set_fraction(min(wanted, before))",
        "self._set_fraction(wanted)",
        "budget",
    ),
    in_accelerator(
        "the limit leaves no room for the context",
        "max(budget_bytes - self.outside_bytes(), 0) / self.fraction_base()",
        "budget_bytes / self.fraction_base()",
        "budget",
    ),
    in_accelerator(
        "a budget below the context is a negative limit",
        "max(budget_bytes - self.outside_bytes(), 0) / self.fraction_base()",
        "(budget_bytes - self.outside_bytes()) / self.fraction_base()",
        "budget",
    ),
    in_accelerator(
        "the limit stays",
        "            self._set_fraction(before)\n",
        "            pass\n",
        "budget",
    ),
    in_accelerator(
        "the user's limit comes back a byte lower",
        "if self._fraction() < before < 1:",
        "if False:",
        "tests/devices/test_cuda.py",
    ),
    in_accelerator("a limit above the device is set", "min(fraction, 1.0)", "fraction", "budget"),
    in_accelerator(
        "live memory is not watched",
        'return int(self._stats().get("allocated_bytes.all.current", 0))',
        "return 0",
        "leaks",
    ),
    in_cuda(
        "a chip in main memory is not recognised",
        'return bool(getattr(torch.cuda.get_device_properties(self.torch_device), "is_integrated", False))',
        "return False",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "the limit is a fraction of what the driver reports",
        "return int(torch.cuda.get_device_properties(self.torch_device).total_memory)",
        "return self.driver_info()[1]",
        "device_checks",
    ),
    in_cuda(
        "memory pools: the limit is a fraction of what the chip was built with",
        "        if torch.cuda.get_allocator_backend() == ASYNC:\n            return int(",
        "        if False:\n            return int(",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is not asked",
        "told = self._nvml.used_bytes() if self._nvml is not None else None",
        "told = None",
        "footprint",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it says less than is reserved",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it says more than is used",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if reserved <= used and (named or used - reserved <= CONTEXT_BYTES):",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "NVML is believed where it names nobody",
        "if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):",
        "if reserved <= used <= total - free:",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "what NVML told is forgotten when it falls silent",
        "        if self._told_outside is not None:\n            return self._told_outside\n",
        "        if told is not None and self._told_outside is not None:\n            return self._told_outside\n",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "an allocator that keeps no account is accepted",
        "if backend not in (NATIVE, ASYNC):",
        "if False:",
        "bad_input",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "an allocator that is switched off is accepted",
        "if uncached := [name for name in UNCACHED if name in os.environ]:",
        "if uncached := [name for name in () if name in os.environ]:",
        "bad_input",
        "allocator_settings",
    ),
    in_cuda(
        "memory of unknown owners is not named",
        "if self._nvml is None and unclear > 0 and not self.is_integrated:",
        "if False:",
        "footprint",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory of unknown owners is named where NVML knows them",
        "if self._nvml is None and unclear > 0 and not self.is_integrated:",
        "if unclear > 0 and not self.is_integrated:",
        "processes",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "nobody is told that memory pools count no retries",
        "        if torch.cuda.get_allocator_backend() == ASYNC:\n            found.append(",
        "        if False:\n            found.append(",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "bf16 that is emulated counts",
        "if torch.cuda.is_bf16_supported(including_emulation=False):",
        "if torch.cuda.is_bf16_supported():",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "tf32 on any chip",
        "torch.cuda.get_device_capability(self.torch_device)[0] >= 8",
        "True",
        "capabilities",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "fp16 is unknown", "{Capability.FP16, Capability.CHANNELS_LAST,", "{Capability.CHANNELS_LAST,", "capabilities"
    ),
    in_cuda(
        "the allocator's settings do not distinguish measurements",
        "        if settings := self._allocator():\n",
        '        if settings := "":\n',
        "allocator_settings",
    ),
    in_cuda(
        "powers of two do not distinguish measurements",
        '        if any(divisions.values()):\n            found.append("roundup',
        '        if False:\n            found.append("roundup',
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "powers of two are not predicted with",
        "        if any(divisions.values()):\n            listed",
        "        if False:\n            listed",
        "prediction",
    ),
    in_cuda(
        "the split size is not predicted with",
        'if (split := known.get("max_split_size", -1)) > 0:',
        'if (split := known.get("max_split_size", -1)) > 2**60:',
        "prediction",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "garbage collection is not predicted with",
        'if threshold := known.get("garbage_collection_threshold", 0.0):',
        "if threshold := 0.0:",
        "prediction",
    ),
    in_cuda(
        "expandable segments are not predicted with",
        'if known.get("expandable_segments"):',
        "if False:",
        "prediction",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory pools are predicted as if they were the allocator",
        "if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:",
        "if torch.version.hip is not None:",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "ROCm is predicted as if it were CUDA",
        "if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:",
        "if torch.cuda.get_allocator_backend() != NATIVE:",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "memory pools do not distinguish measurements",
        "        if backend != NATIVE:\n            return backend\n",
        "",
        "allocator_settings",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "what ran before is timed too",
        "        self.synchronize()\n        first.record(stream)\n",
        "        first.record(stream)\n",
        "meter",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "a time is read before the work is done",
        "        last.record(stream)\n        self.synchronize()\n",
        "        last.record(stream)\n",
        "meter",
        "tests/devices/test_cuda.py",
    ),
    in_cuda(
        "milliseconds are seconds", "float(first.elapsed_time(last)) / 1e3", "float(first.elapsed_time(last))", "meter"
    ),
    in_cuda(
        "libraries keep their workspaces",
        "        if clear is not None:\n            clear()\n",
        "",
        "leaks",
        "out_of_memory",
        "footprint",
    ),
    in_cuda(
        "NVML is asked of a chip in main memory",
        "if torch.version.hip is not None or self.is_integrated:",
        "if torch.version.hip is not None:",
        "footprint",
        "tests/devices/test_cuda.py",
    ),
    in_nvml(
        "NVML that does not start is asked",
        "if library.nvmlInit_v2() != _SUCCESS:",
        "if False:",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "slices are not found", 'for kind in ("GPU", "MIG"):', 'for kind in ("GPU",):', "tests/devices/test_nvml.py"
    ),
    in_nvml(
        "a machine without NVML is an error",
        "except (OSError, AttributeError):",
        "except ZeroDivisionError:",
        "footprint",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "any process is taken for this one",
        "            if process.pid == os.getpid():\n",
        "            if True:\n",
        "processes",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "the only process of a container is not known",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return None",
        "footprint",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "the first of many processes is taken for this one",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return (int(found[0].used_bytes), False) if found else None",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "a process that was guessed counts as named",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return (int(found[0].used_bytes), True) if len(found) == 1 else None",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "more processes than there is room for end the question",
        "            if code != _INSUFFICIENT_SIZE:\n",
        "            if True:\n",
        "tests/devices/test_nvml.py",
    ),
    in_nvml("a refusal counts as an answer", "if code == _SUCCESS else []", "", "tests/devices/test_nvml.py"),
    in_nvml(
        "an old driver is an error",
        "except AttributeError:  # a driver before 510",
        "except ZeroDivisionError:",
        "tests/devices/test_nvml.py",
    ),
)


def copy_to(folder: Path) -> None:
    """Copies what the tests need of this checkout."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, folder / name)


def mutated(mutation: Mutation, folder: Path) -> str:
    """Writes the mutation into the copy and returns the text that was there.

    Raises:
        SystemExit: the text to replace is not there exactly once.
    """
    path = folder / mutation.file
    text = path.read_text(encoding="utf-8")
    if (times := text.count(mutation.old)) != 1:
        sys.exit(
            f"mutate-cuda: {mutation.file} has this {times} times, expected once: {mutation.old!r} ({mutation.name})"
        )
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return text


def path(likely: str) -> str:
    """Returns the path of a test file."""
    return likely if "/" in likely else f"tests/cuda/test_{likely}.py"


def run(tests: Sequence[str], folder: Path, given: argparse.Namespace) -> tuple[str, str, float]:
    """Runs tests in the copy until one fails; returns status, the test that failed, and seconds."""
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
    """Returns the environment of the tests: the copy comes before an installed package."""
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> int:
    """Runs the mutations asked for; prints a table and a summary line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phantom", metavar="DIR", help="a phantom that tests/phantom/build.py has built")
    parser.add_argument(
        "--python", default=sys.executable, help="the Python with the CUDA build of torch, for --phantom"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="mutations whose name contains this")
    parser.add_argument("--check", action="store_true", help="only check that each text is there exactly once")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the results there")
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
        print(f"{len(chosen)} mutations, each of one text that is there once")
    else:
        print(f"{len(chosen)} mutations: {len(results) - len(missed)} noticed, {len(missed)} not")
    return 1 if missed else 0


def check_unmutated(chosen: Sequence[Mutation], folder: Path, given: argparse.Namespace) -> None:
    """Runs the tests that are likely to notice before anything is mutated: a failure must come from the mutation.

    Raises:
        SystemExit: one of them fails, or none ran.
    """
    status, by, seconds = run(sorted({path(likely) for each in chosen for likely in each.likely}), folder, given)
    if status != "survived":
        sys.exit(f"mutate-cuda: the tests fail without any mutation, so they cannot judge one: {by}")
    print(f"passed    {seconds:5.0f} s  without any mutation", flush=True)


def tried(mutation: Mutation, folder: Path, given: argparse.Namespace) -> Result:
    """Returns what became of a mutation, and prints it."""
    original, seconds = mutated(mutation, folder), 0.0
    try:
        # In calls of their own: pytest puts a file that is named beside its folder where it comes in the folder.
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
