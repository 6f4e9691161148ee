"""SECURITY.md is exact: on hostile files, each command opens, writes, connects to and starts only what it lists."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from autofit import exporters, planfile
from autofit.core.budget import Budget
from tests.cli.processes import ROOT, TARGETS
from tests.hostile import tracer
from tests.hostile.readers import reader
from tests.test_planfile import RECORD

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
COLUMNS = ("read", "write", "connect", "start")
INSTALLED = tuple({sys.prefix, sys.base_prefix, str(ROOT), "/proc", "/sys", "/dev", "/usr", "/etc", "/lib"})
SYSTEM_WRITES = ("/dev/null", "/proc/self/clear_refs")
PASSWORD, SECRET = "hunter2", "the-content-of-a-private-file"
DRIVER = """
import contextlib, io, json, os, sys
from autofit.cli import main
found, started = [], os.environ["AUTOFIT_TEST_CASE"]
for number, words in enumerate(json.load(sys.stdin)):
    os.environ["AUTOFIT_TEST_CASE"] = f"{started}-{number}"
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    found.append([code, out.getvalue() + err.getvalue()])
json.dump(found, sys.stdout)
"""


def rows() -> dict[str, Mapping[str, set[str]]]:
    """Returns what SECURITY.md allows each command, as the words of its table by column."""
    table = PAGE.partition("| command | reads | writes | connects to | starts |\n|---|---|---|---|---|\n")[2].partition(
        "\n\n"
    )[0]
    found = dict[str, Mapping[str, set[str]]]()
    for line in table.splitlines():
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        allowed = {column: set(re.findall("[A-Z]+", cell)) for column, cell in zip(COLUMNS, cells, strict=True)}
        found |= dict.fromkeys(re.findall("`([^`]+)`", names), allowed)
    return found


@dataclass
class Sandbox:
    """A directory with hostile files, and everything that a command could find beside it.

    `places` are the patterns of paths that a word of SECURITY.md stands for here.
    """

    folder: Path
    work: Path
    trace: Path

    @property
    def places(self) -> dict[str, Sequence[str]]:
        work, jobs = str(self.work), str(self.work / "jobs")
        return {
            "PLAN": [f"{work}/plan-*.yaml", f"{jobs}/plans", f"{jobs}/plans/*.yaml", f"{jobs}/plans/.*.yaml.????????"],
            "OUTPUT": [f"{work}/out.*", f"{work}/.out.*.????????", f"{self.folder}/outside/private.yaml"],
            "STUDY": [f"{work}/study-*", f"{self.folder}/outside/*", f"{work}/.autofit",
                      f"{work}/.autofit/study.journal", f"{jobs}/history.journal"],
            "SPLITS": [f"{work}/**.splits.jsonl", f"{work}/*.splits.jsonl"],
            "LOG": [work, f"{work}/.autofit/study.journal.log", f"{jobs}/*.log"],
            "JOBS": [f"{jobs}/*.yaml"],
            "MARK": [f"{jobs}/.autofit", f"{jobs}/.autofit/*.yaml.night", f"{jobs}/.autofit/.*.night.????????"],
            "LOCKS": [f"{self.folder}/locks", f"{self.folder}/locks/*.lock"],
            "TEMPORARY": [f"{self.folder}/temporary/*"],
            "CODE": [f"{Path(TARGETS).parent}/*", f"{work}/train.py"],
            "URL": [f"{self.folder}/outside/location"],
        }  # fmt: skip

    def environment(self, case: str) -> dict[str, str]:
        """Returns the environment of a command whose processes are traced."""
        kept = {name: os.environ[name] for name in ("PATH", "CXX") if name in os.environ}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join([str(self.folder / "site"), str(ROOT)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "temporary"),
            "AUTOFIT_RUNTIME_DIR": str(self.folder / "locks"),
            "AUTOFIT_TEST_TRACE": str(self.trace),
            "AUTOFIT_TEST_CASE": case,
        }

    def outside(self, allowed: Mapping[str, set[str]], case: str) -> list[str]:
        """Returns what a case did that its row does not allow."""
        return sorted(
            {
                f"{kind} {what}"
                for name, kind, what in self.events()
                if name == case
                if not self._is_allowed(allowed, kind, what)
            }
        )

    def events(self) -> Iterator[tuple[str, str, str]]:
        for line in self.trace.read_text().splitlines():
            case, kind, what = json.loads(line)
            yield case, kind, what

    def _is_allowed(self, allowed: Mapping[str, set[str]], kind: str, what: str) -> bool:
        if kind == "load":
            return not what.startswith("pickle")
        if kind in ("connect", "start"):
            python = f"{sys.executable} -P {ROOT / 'autofit/probing/remote/supervisor.py'} "
            return kind == "start" and "PYTHON" in allowed["start"] and what.startswith(python)
        if what.startswith((str(self.folder / "site"), str(self.trace))):
            return True
        if (what.startswith(INSTALLED) and kind == "read") or what in SYSTEM_WRITES:
            return True
        words = allowed["write"] | (allowed["read"] | allowed["connect"] if kind == "read" else set())
        return any(fnmatch(what, place) for word in words for place in self.places.get(word, ()))


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("site", "work/jobs/plans", "outside", "locks", "temporary", "home/.ssh"):
        (folder / name).mkdir(parents=True, mode=0o700)
    made = Sandbox(folder, folder / "work", folder / "trace")
    made.trace.touch()
    (folder / "site" / "sitecustomize.py").write_text(Path(str(tracer.__file__)).read_text())
    for name in (
        "torch",
        "yaml",
        "optuna",
        "json",
        "sitecustomize",
        "jinja2",
        "autofit",
    ):  # they would run if they were found
        (made.work / f"{name}.py").write_text(f"open({str(folder / 'executed')!r}, 'w')")
    (folder / "outside" / "private.yaml").write_text(SECRET)
    (folder / "home" / ".ssh" / "id_rsa").write_text(SECRET)
    (folder / "outside" / "location").write_text(SECRET)
    (folder / "outside" / "other.journal").write_bytes(reader("study").valid)
    _write_plans(made)
    _write_studies(made)
    _write_jobs(made)
    return made


def _write_plans(sandbox: Sandbox) -> None:
    executed, work = sandbox.folder / "executed", sandbox.work
    texts = {
        "title": "</script><script>alert(1)</script>",
        "command": f"autofit tune --study postgresql://me:{PASSWORD}@127.0.0.1:9/db?password={PASSWORD}",
        "stopped": "\x1b[2J\x1b]0;owned\x07\u202e",
        "caveats": ("{{ 7 * 7 }}", "<img src=x onerror=alert(1)>", "a\r\nb\x9b31m"),
    }
    studies = {
        "server": f"postgresql://me:{PASSWORD}@127.0.0.1:9/db", "database": "sqlite:////tmp/x.db",
        "share": "//127.0.0.1/share/x", "home": "~/.ssh/id_rsa", "above": "../outside/other.journal",
        "private": "../outside/private.yaml", "root": "/", "reference": "file:../outside/location",
    }  # fmt: skip
    for name, study in studies.items():
        planfile.save(RECORD.model_copy(update={**texts, "study": study}), work / f"plan-{name}.yaml")
    (work / "plan-tag.yaml").write_text(
        f"schema: autofit.plan/1\nplan: !!python/object/apply:os.system ['touch {executed}']\n"
    )
    (work / "plan-bomb.yaml").write_text("a: &a [x]\n" + "".join(f"b{n}: &a [*a, *a]\n" for n in range(40)))
    (work / "plan-deep.yaml").write_text("schema: " + "[" * 100_000)
    os.mkfifo(work / "plan-pipe.yaml")
    (work / "plan-link.yaml").symlink_to(sandbox.folder / "outside" / "private.yaml")


def _write_studies(sandbox: Sandbox) -> None:
    work, valid = sandbox.work, reader("study").valid
    (work / "study-valid.journal").write_bytes(valid)
    (work / "study-huge.journal").write_bytes(valid + b'{"op_code":99999999999999999999}\n')
    (work / "study-parts.journal").write_bytes(re.sub(rb'"parts":\d+', b'"parts":999999999999999999', valid))
    (work / "study-deep.journal").write_bytes(valid + b'{"op_code":' + b"[" * 100_000 + b"\n")
    (work / "study-naive.journal").write_bytes(re.sub(rb"(\d\d:\d\d:\d\d)(\.\d+)?(Z|\+00:00)", rb"\1", valid))
    (work / "study-link.journal").symlink_to(sandbox.folder / "outside" / "private.yaml")


def _write_jobs(sandbox: Sandbox) -> None:
    jobs, executed = sandbox.work / "jobs", sandbox.folder / "executed"
    head = "schema: autofit.jobs/1\n"
    private = "../../outside/private.yaml"
    job = f"{{name: gpt, workload: {private}, plan: plans/gpt.yaml, on_regression: [touch, {executed}]}}"
    other = f"{{name: ../x, workload: /etc/passwd, plan: {private}}}"
    texts = {
        "other": f"history: history.journal\njobs:\n  - {job}\n  - {other}\n",
        "file": f"history: file:../../outside/location\njobs:\n  - {job}\n",
        "tag": f"jobs: !!python/object/apply:os.system ['touch {executed}']\n",
        "secret": f"history: [postgresql://me:{PASSWORD}@127.0.0.1:9/db]\njobs: [{job}]\nx: '\\e[2J'\n",
        "long": f"jobs: [{job}]\ntime: '{'a://' * 20_000}'\n",
    }
    for name, text in texts.items():
        (jobs / f"{name}.yaml").write_text(head + text)
    planfile.save(RECORD, jobs / "plans" / "gpt.yaml")
    planfile.save(RECORD.model_copy(update={"budget": Budget(memory_bytes=2**33)}), jobs / "plans" / "gpt.new.yaml")


def _quick_cases(sandbox: Sandbox) -> Iterator[tuple[str, list[str]]]:
    """Yields commands that run no code of the user's, each with its name in SECURITY.md."""
    plans, studies = sorted(sandbox.work.glob("plan-*")), sorted(sandbox.work.glob("study-*"))
    for plan in map(str, plans):
        yield "show", ["show", plan]
        yield "show", ["show", plan, "--json"]
        yield "diff", ["diff", plan, str(sandbox.work / "plan-above.yaml")]
        yield "export", ["export", plan]
    for exporter in exporters.members():
        yield "export", ["export", str(plans[0]), "--to", exporter.name]
    for source in map(str, (*plans, *studies)):
        for output in ("out.html", "out.md", "-"):
            yield "report", ["report", source, "-o", output]
    yield "export", ["export", str(plans[0]), "-o", "out.py"]
    yield "export", ["export", str(plans[0]), "-o", "../outside/private.yaml"]
    yield "report", ["report", str(plans[0]), "-o", "../outside/private.yaml", "--format", "md"]
    for jobs in map(str, sorted((sandbox.work / "jobs").glob("*.yaml"))):
        yield "nightly --dry-run", ["nightly", jobs, "--dry-run"]
        yield "nightly accept", ["nightly", "accept", "gpt", "--jobs", jobs]
        yield "nightly accept", ["nightly", "accept", "gpt", "--jobs", jobs, "--level"]
    yield "nightly init", ["nightly", "init", "../../outside/x.py:make", "-o", "out.jobs.yaml"]
    yield "completion", ["completion", "bash"]


def test_every_command_has_a_row() -> None:
    listed = set(rows())
    assert listed == {
        "show",
        "diff",
        "export",
        "report",
        "tune",
        "run",
        "estimate",
        "doctor",
        "nightly",
        "nightly --dry-run",
        "nightly init",
        "nightly accept",
        "completion",
    }


def test_every_word_of_the_table_is_explained() -> None:
    words = {word for allowed in rows().values() for column in allowed.values() for word in column}
    explained = re.findall(r"(?:^\* |, |\. )(?=[A-Z, ]+:)([A-Z, ]+):", PAGE, re.MULTILINE)
    assert words <= {word for words in explained for word in words.split(", ")}


@pytest.mark.skipif(sys.platform != "linux", reason="named pipes and /proc")
@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_commands_that_run_no_code_open_only_what_is_listed(sandbox: Sandbox, every: int) -> None:
    cases = list(_quick_cases(sandbox))[::every]
    ran = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER],
        input=json.dumps([words for _, words in cases]),
        cwd=sandbox.work,
        env=sandbox.environment(f"{every}"),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    faults = list[Any]()
    for number, ((command, words), (code, text)) in enumerate(zip(cases, json.loads(ran.stdout), strict=True)):
        outside = sandbox.outside(rows()[command], f"{every}-{number}")
        shown = [
            each
            for each in ("\x1b", "\x9b", "\x07", "\u202e", SECRET, f":{PASSWORD}@", f"={PASSWORD}", "Traceback")
            if each in text
        ]
        if outside or shown or code not in (0, 2):
            faults.append((words, code, outside, shown, text[-300:] if code not in (0, 2) else ""))
    assert faults == [], "\n".join(map(str, faults))
    assert {kind for _, kind, _ in sandbox.events()} >= {"read", "write"}, "the tracer saw nothing"
    assert not (sandbox.folder / "executed").exists()
    assert (sandbox.folder / "outside" / "private.yaml").read_text() == SECRET
    assert "<script>alert" not in (sandbox.work / "out.html").read_text()


STRAYING = """
import os, socket, sqlite3, subprocess, sys
open("../outside/location").read()
open("other.txt", "w").close()
os.rename("other.txt", "another.txt")
sqlite3.connect("x.db").close()
subprocess.run(["true"])
with socket.socket() as connection:
    connection.connect_ex(("127.0.0.1", 9))
"""


def test_the_tracer_sees_what_is_not_listed(sandbox: Sandbox) -> None:
    subprocess.run(
        [sys.executable, "-P", "-c", STRAYING], cwd=sandbox.work, env=sandbox.environment("straying"), check=True
    )
    found = sandbox.outside(rows()["show"], "straying")
    work = sandbox.work
    assert set(found) == {
        f"read {sandbox.folder}/outside/location", f"write {work}/other.txt", f"write {work}/another.txt",
        f"write {work}/x.db", "start true", "connect ('127.0.0.1', 9)",
    }  # fmt: skip


SMALL = ["--device", "cpu", "--memory", "64MiB", "--only", "batching", "--time", "8s", "--quiet"]
NIGHT = f"""\
schema: autofit.jobs/1
history: history.journal
jobs:
  - {{name: mlp, workload: "{TARGETS}:make_mlp", plan: plans/mlp.yaml, device: cpu, memory: 64MiB,
     strategies: [batching], time: 8s}}
"""
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), batch_size=8)
for inputs, targets in loader:
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune", ["tune", f"{TARGETS}:make_mlp", *SMALL, "-o", "out.tune.yaml"]),
        ("tune", ["tune", f"{TARGETS}:make_mlp", *SMALL, "-o", "out.tune.yaml", "--study", "study-parts.journal"]),
        ("tune", ["tune", f"{TARGETS}:make_mlp", *SMALL, "-o", "../outside/private.yaml"]),
        ("run", ["run", "train.py", *SMALL[2:], "-o", "out.run.yaml"]),
        ("estimate", ["estimate", f"{TARGETS}:make_mlp", *SMALL[:4], "--html", "out.estimate.html"]),
        ("doctor", ["doctor", f"{TARGETS}:make_mlp", "--device", "cpu", "--no-runs", "--html", "out.doctor.html"]),
        ("nightly", ["nightly", "jobs/night.yaml", "--time", "25s", "--html", "out.night.html"]),
    ],
    ids=["tune", "tune-hostile-study", "tune-other-file", "run", "estimate", "doctor", "nightly"],
)  # fmt: skip
def test_commands_that_run_code_open_only_what_is_listed(sandbox: Sandbox, command: str, words: list[str]) -> None:
    (sandbox.work / "jobs" / "night.yaml").write_text(NIGHT)
    (sandbox.work / "train.py").write_text(SCRIPT)
    case = " ".join(words)
    code = "import sys; from autofit.cli import main; sys.exit(main(sys.argv[1:]))"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        cwd=sandbox.work,
        env=sandbox.environment(case),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == (2 if "../outside/private.yaml" in words else 0), ran.stderr[-2000:]
    assert sandbox.outside(rows()[command], case) == []
    assert sum(name == case for name, _, _ in sandbox.events()) > 100
    assert not (sandbox.folder / "executed").exists()
