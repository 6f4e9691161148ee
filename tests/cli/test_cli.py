"""The command line: exit codes, one JSON document, nothing on stdout but the result, and no process left behind."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import pytest
import yaml

import autofit
from autofit import cli, planfile
from autofit.cli import tune as tune_command
from autofit.core.briefing import Briefing
from autofit.core.errors import (
    Busy,
    DevicePoisoned,
    NonFiniteLoss,
    NothingFits,
    StudyError,
    UserCodeError,
    WorkloadError,
)
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.memory.trace import Trace
from autofit.probing.remote.bench import Target
from tests.fakes import FakeBench, briefing_of, small_bench, space_of
from tests.probing.remote.fake_worker import is_alive

ROOT = Path(__file__).parents[2]
TARGETS = f"{Path(__file__).parent / 'targets.py'}"


class FakeRemote:
    """A bench in no process at all; remembers what it was opened with."""

    target: Target
    bench: FakeBench
    fails: BaseException | None
    interrupt_after: int | None
    closed: bool

    proof_start_s = 0.0

    def __init__(self, target: Target, claim: Callable[[str, str], None], **given: object) -> None:
        kind = type(self)
        kind.target, kind.closed = target, False
        if kind.fails is not None:
            raise kind.fails
        self.briefing: Briefing = briefing_of(kind.bench)

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        kind = type(self)
        if kind.interrupt_after is not None and len(kind.bench.runs) >= kind.interrupt_after:
            raise KeyboardInterrupt
        return kind.bench.evaluate(plan, purpose)

    def trace(self, plan: Plan) -> Trace:
        raise AssertionError("this device's memory is not estimated")

    record = trace

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        type(self).closed = True


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeRemote]:
    """Stands in for the child process; the working directory is empty."""
    fresh: Mapping[str, Any] = {"bench": small_bench(), "fails": None, "interrupt_after": None, "closed": False}
    kind = type("Remote", (FakeRemote,), dict(fresh))
    monkeypatch.setattr(tune_command, "RemoteBench", kind)
    monkeypatch.chdir(tmp_path)
    return kind


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process; returns exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_tune_show_and_export(remote: type[FakeRemote], run: Run) -> None:
    code, out, err = run("tune", "train.py:make", "--study", ":memory:")
    assert code == 0
    assert out.startswith("Use micro batch ")
    assert "autofit: tuning on Fake 1 (fake)" in err
    assert "autofit: plan written to autofit.yaml" in err
    assert remote.closed
    assert remote.target.name == "train.py:make"
    plan = planfile.load("autofit.yaml").plan
    assert remote.bench.regret(plan) < 0.03
    assert run("show") == (0, out, "")
    code, text, _ = run("export", "--to", "python")
    assert code == 0
    compile(text, "export.py", "exec")
    assert run("export", "-o", "loop.py")[1] == ""
    assert Path("loop.py").read_text() == text


def test_quiet_prints_the_result_alone(remote: type[FakeRemote], run: Run) -> None:
    code, out, err = run("tune", "train.py", "--quiet", "--study", ":memory:")
    assert (code, err) == (0, "")
    assert out.startswith("Use ")


def test_json_is_one_document_on_stdout(remote: type[FakeRemote], run: Run) -> None:
    code, out, _ = run("tune", "train.py", "--json", "--study", ":memory:")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "autofit.plan/1"
    assert told == json.loads(planfile.load("autofit.yaml").model_dump_json(by_alias=True))
    assert json.loads(run("show", "--json")[1]) == told
    export = json.loads(run("export", "--json")[1])
    assert set(export) == {"text", "filename", "unmapped"}


FAILURES = [
    (WorkloadError("found a list; expected a model"), 2),
    (NothingFits("no plan fits into 1 MiB"), 3),
    (UserCodeError("your code failed", 'File "train.py", line 3\nValueError: \x1b[2Jboom'), 5),
    (NonFiniteLoss("the loss is not finite"), 5),
    (DevicePoisoned("the device does not answer"), 8),
    (Busy("the device is in use"), 6),
    (KeyboardInterrupt(), 130),
    (ZeroDivisionError("a fault of autofit"), 1),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_each_failure_has_its_exit_code(error: BaseException, code: int, remote: type[FakeRemote], run: Run) -> None:
    remote.fails = error
    found, out, err = run("tune", "train.py", "--study", ":memory:")
    assert (found, out) == (code, "")
    assert str(error) in err
    assert "\x1b" not in err
    assert ("boom" in err) == (type(error) is UserCodeError)
    assert ("Traceback" in err) == (code == 1)
    found, out, err = run("tune", "train.py", "--json", "--study", ":memory:")
    told = json.loads(out)["error"]
    assert found == told["exit_code"] == code
    assert str(error) in told["message"]
    assert told["type"] == ("Interrupted" if code == 130 else type(error).__name__)
    assert not Path("autofit.yaml").exists()


def test_time_that_ends_with_no_plan_is_7(remote: type[FakeRemote], run: Run) -> None:
    code, _, err = run("tune", "train.py", "--time", "0.001ms", "--study", ":memory:")
    assert code == 7
    assert "time budget of 0.001 ms" in err
    assert not Path("autofit.yaml").exists()


def test_a_study_of_another_schema_is_refused_by_name(remote: type[FakeRemote], run: Run) -> None:
    assert run("tune", "t.py", "--study", "s.db", "--trials", "1", "-o", "a.yaml")[0] == 0
    with sqlite3.connect("s.db") as study:
        study.execute(
            "update study_user_attributes set value_json = '\"autofit.study/9\"' where key = 'autofit.schema'"
        )
    probes = len(remote.bench.runs)
    code, _, err = run("tune", "t.py", "--study", "s.db", "-o", "b.yaml")
    assert code == StudyError.exit_code
    assert "has the schema autofit.study/9; expected autofit.study/1" in err
    assert len(remote.bench.runs) == probes  # nothing was measured in vain
    assert not Path("b.yaml").exists()


def test_a_study_of_another_space_says_what_differs_and_goes_on_with_what_compares(
    remote: type[FakeRemote], run: Run
) -> None:
    knobs = small_bench().space.facts.knobs
    narrow = tuple(knob.only(("float32", "bf16")) if knob.name == "precision" else knob for knob in knobs)
    remote.bench = small_bench(space=space_of(narrow, (4, 8, 16, 32, 64), 8))
    assert run("tune", "t.py", "--study", "s.db", "--trials", "3")[0] == 0
    first = set(remote.bench.probes())
    remote.bench = small_bench()
    code, out, err = run("tune", "t.py", "--study", "s.db", "--trials", "3")
    assert code == 0
    assert "precision: float32, tf32, bf16, was float32, bf16" in " ".join(out.split())
    assert "plans are known from earlier runs" in err
    assert first
    assert first & set(remote.bench.probes()) <= {remote.bench.space.baseline}


def test_an_interrupted_command_goes_on_from_its_trials(remote: type[FakeRemote], run: Run) -> None:
    remote.interrupt_after = 3
    code, _, err = run("tune", "train.py")
    assert code == 130
    assert "interrupted; the same command goes on" in err
    assert remote.closed
    assert not Path("autofit.yaml").exists()
    first = set(remote.bench.probes())
    remote.bench, remote.interrupt_after = small_bench(), None
    code, _, err = run("tune", "train.py")
    assert code == 0
    assert "3 plans are known from earlier runs" in err
    assert first & set(remote.bench.probes()) <= {remote.bench.space.baseline}


def test_sigterm_is_an_interrupt_while_tuning_and_nothing_afterwards(remote: type[FakeRemote], run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM)
    evaluate, sent = remote.bench.evaluate, list[int]()

    def terminated(plan: Plan, purpose: Purpose) -> Outcome:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(plan, purpose)

    remote.bench.evaluate = terminated  # type: ignore[method-assign]  # a bench that is terminated in its first run
    code, _, err = run("tune", "train.py", "--study", ":memory:")
    assert code == 130
    assert "terminated" in err
    assert signal.getsignal(signal.SIGTERM) is before


def test_arguments_reach_the_target_and_the_request(remote: type[FakeRemote], run: Run) -> None:
    words = "--global-batch 64 --memory 20GiB --numerics exact --device cpu --max-grad-norm 1.5 --mode train --seed 7"
    names = ["--arg", "depth=12", "--arg", "name=small", "--arg", "wide=true", "--arg", "sizes=[1, 2]"]
    code, out, _ = run("tune", "t.py", *words.split(), "--strategies", "batching, precision", *names, "--trials", "6",
                       "--time", "1h", "--json", "--study", ":memory:")  # fmt: skip
    assert code == 0
    target = remote.target
    assert target.arguments == {"depth": 12, "name": "small", "wide": True, "sizes": [1, 2]}
    overrides = {"global_batch_size": 64, "max_global_batch_size": None, "mode": "train", "max_grad_norm": 1.5}
    assert target.overrides == overrides
    assert (target.device, target.options.seed, target.options.numerics) == ("cpu", 7, "exact")
    assert target.options.memory_budget == "20GiB"
    assert target.options.strategies == ("batching", "precision")
    assert json.loads(out)["budget"]["time_s"] == 3600
    assert json.loads(out)["budget"]["max_trials"] == 6
    assert json.loads(out)["objective"]["planned_samples"] is None
    _, out, _ = run("tune", "t.py", "--planned-steps", "50", "--json", "--study", ":memory:")
    assert json.loads(out)["objective"]["planned_samples"] == 50 * 8  # the user's own batch
    run("tune", "t.py", "--memory", "0.5", "--study", ":memory:")
    assert remote.target.options.memory_budget == 0.5


USAGE = [
    ((), "COMMAND"),
    (("tune",), "TARGET"),
    (("tune", "t.py", "--numerics", "bold"), "bold"),
    (("tune", "t.py", "--memory", "much"), "20GiB"),
    (("tune", "t.py", "--memory", "20"), 'did you mean "20GiB"?'),
    (("tune", "t.py", "--memory", "-1"), "more than zero|cannot read"),
    (("tune", "t.py", "--memory", "nan"), "cannot read"),
    (("tune", "t.py", "--time", "soon"), "5min"),
    (("tune", "t.py", "--arg", "depth"), "NAME=VALUE"),
    (("tune", "t.py", "--arg", "x=[1"), "the value of --arg 'x=[1' cannot be read"),
    (("tune", "t.py", "--arg", "x=2026-01-31"), "Quote a string that YAML reads as something else"),
    (("tune", "t.py", "--searcher", "quick"), "unknown searcher"),
    (("tune", "t.py", "--planned-steps", "0"), "whole number of at least 1"),
    (("tune", "t.py", "--planned-steps", "1e5"), "invalid int value"),
    (("tune", "t.py", "-o", "nowhere/autofit.yaml"), "not a writable directory"),
    (("tune", "t.py", "-o", "."), "not an autofit plan"),
    (("show", "missing.yaml"), "Check the path"),
    (("export", "missing.yaml"), "Check the path"),
]


@pytest.mark.parametrize(("words", "said"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_a_usage_error_is_2_and_says_what_is_expected(
    words: tuple[str, ...], said: str, remote: type[FakeRemote], run: Run
) -> None:
    remote.fails = AssertionError("nothing may be opened")
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert any(part in err for part in said.split("|"))
    if not words:
        return
    code, out, _ = run(*words, "--json")
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize("content", ["weights: 1\n", "import torch\n"])
def test_an_output_that_is_no_plan_is_refused_before_anything_runs(
    content: str, remote: type[FakeRemote], run: Run
) -> None:
    remote.fails = AssertionError("nothing may be opened")
    Path("mine.yaml").write_text(content)
    code, _, err = run("tune", "t.py", "-o", "mine.yaml")
    assert code == 2
    assert "not an autofit plan" in err
    assert Path("mine.yaml").read_text() == content


@pytest.mark.parametrize("content", ["schema: autofit.plan/7\n", "schema: autofit.plan/1\nplan: [\n", ""])
def test_a_damaged_or_newer_plan_is_replaced(content: str, remote: type[FakeRemote], run: Run) -> None:
    Path("autofit.yaml").write_text(content)
    assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
    assert planfile.load("autofit.yaml").plan


def test_control_sequences_of_a_plan_file_do_not_reach_the_terminal(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x1b]0;title\x07 \x1b[2Jgone \x9b2J"]
    data["environment"]["device_name"] = "\x1b[31mred"
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml")
    assert code == 0
    assert "red" in out
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
    code, out, err = run("export", "evil.yaml")
    assert code == 0
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)


def test_defect_15_what_is_unseen_reaches_the_terminal_neither_as_json_nor_in_errors(
    remote: type[FakeRemote], run: Run
) -> None:
    unseen = {"\x9b", "\u202e", "\u2066", "\x7f"}
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x9b2J\u202egone\u2066\x7f"]
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml", "--json")
    assert code == 0
    assert json.loads(out)["caveats"] == data["caveats"]
    assert not unseen & set(out + err)
    for words in (
        ("show", "no\u202e\x9bne.yaml"),
        ("tune", "t.py", "--searcher", "\u202e\x9bquick"),
        ("tune", "t.py", "--numerics", "\u202e\x9bbold"),
        ("\u202e\x9btune",),
        ("tune", "t.py", "-o", "\u202e\x9b/a.yaml"),
    ):
        for more in ((), ("--json",)):
            code, out, err = run(*words, *more)
            assert code == 2
            assert err
            assert not unseen & set(out + err)
    remote.fails = UserCodeError("your code failed: \u202eboom", "ValueError: \u202e\x9bboom")
    _, out, err = run("tune", "t.py", "--json", "--study", ":memory:")
    assert "boom" in err
    assert not unseen & set(out + err)


def test_defect_12_an_export_replaces_an_earlier_export_and_nothing_else(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    Path("train.py").write_text("import torch\n")
    code, out, err = run("export", "-o", "train.py")
    assert (code, out) == (2, "")
    assert "found a file there that autofit did not export; expected" in err
    assert "--force" in err
    assert Path("train.py").read_text() == "import torch\n"
    assert run("export", "-o", "train.py", "--force")[0] == 0
    text = Path("train.py").read_text()
    assert text.startswith("# autofit plan: ")
    Path("train.py").chmod(0o600)
    assert run("export", "-o", "train.py")[0] == 0
    assert Path("train.py").read_text() == text
    assert Path("train.py").stat().st_mode & 0o777 == 0o600
    for path in (".", "missing/loop.py"):
        code, _, err = run("export", "-o", path, "--force")
        assert code == 2
        assert "Choose another path" in err
    assert sorted(path.name for path in Path().iterdir()) == ["autofit.yaml", "train.py"]


def test_defect_12_tune_replaces_another_file_only_when_forced(remote: type[FakeRemote], run: Run) -> None:
    Path("train.py").write_text("import torch\n")
    code, _, err = run("tune", "t.py", "-o", "train.py", "--study", ":memory:")
    assert code == 2
    assert "--force" in err
    assert Path("train.py").read_text() == "import torch\n"
    assert run("tune", "t.py", "-o", "train.py", "--force", "--study", ":memory:", "--trials", "3")[0] == 0
    assert planfile.load("train.py").plan


def test_defect_12_a_private_plan_stays_private(remote: type[FakeRemote], run: Run) -> None:
    for _ in range(2):
        assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
        assert Path("autofit.yaml").stat().st_mode & 0o077 in (0o044, 0)
        Path("autofit.yaml").chmod(0o600)
    assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
    assert Path("autofit.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("everywhere", [False, True])
def test_defect_12_the_result_is_printed_where_the_plan_cannot_be_saved(
    everywhere: bool, remote: type[FakeRemote], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save = planfile.save

    def full(recommendation: Any, path: str | Path, *, force: bool = False) -> None:
        if everywhere or str(path) == "autofit.yaml":
            raise planfile.PlanFileError(f"{path} could not be written: found No space left on device; expected space.")
        save(recommendation, path, force=force)

    monkeypatch.setattr(planfile, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ("tune", "t.py", "--study", "s.db", "--trials", "3")
    code, out, err = run(*words)
    assert code == 2
    assert out.startswith(("Use micro batch", "Keep your own"))
    assert "No space left on device" in err
    assert not Path("autofit.yaml").exists()
    if everywhere:
        assert "The trials are in the study" in err
        assert "same command makes the plan again" in err
    else:
        path = err.rpartition("autofit show ")[2].partition("`")[0]
        assert planfile.load(path).plan
    code, out, _ = run(*words, "--json")
    assert code == 2
    assert json.loads(out)["schema"] == "autofit.plan/1"  # one document, and it is the result


@contextmanager
def terminal(width: int) -> Iterator[tuple[TextIO, list[bytes]]]:
    """Gives a real terminal of a width as a stream, and what was written to it once it is closed."""
    leader, follower = os.openpty()
    pytest.importorskip("termios").tcsetwinsize(follower, (30, width))
    written: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(leader, 2**16):
                written.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as stream:
        yield stream, written
    reader.join()
    os.close(leader)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize("width", [60, 100, 200])
def test_b18_on_a_terminal_all_lines_fit_and_trials_stay_above_the_live_line(
    width: int, remote: type[FakeRemote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(width) as (stream, written), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(sys, "stdout", stream)
        assert cli.main(["tune", "train.py", "--study", ":memory:", "--time", "10min"]) == 0
    text = b"".join(written).decode()
    assert "\x1b" not in text
    drawn = [part for line in text.split("\r\n") for part in line.split("\r")]
    assert max(map(len, drawn)) <= width
    left = [line.split("\r")[-1].rstrip() for line in text.split("\r\n")]
    probes = [plan for plan in remote.bench.probes()]
    rows = [line for line in left if re.match(r" +\d+ +\d+\.\d\dx ", line)]
    assert len(rows) == len(probes)  # each fits here, and is left above the line
    assert any(re.match(r"proof +\d+\.\d\dx", line) for line in left)
    live = [part.strip() for part in drawn if " left" in part and part.startswith("searching")]
    assert any(
        re.fullmatch(rf"searching  ?{len(probes)}(?: trials)?  best \d\.\d\dx at .* GiB  \d+:\d\d left", each)
        for each in live
    )
    assert next(line for line in left if line.startswith(("Use ", "Keep ")))


@pytest.mark.parametrize("command", [(), ("tune",), ("show",), ("export",)])
def test_help_names_the_choices(command: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: autofit")
    expected = {(): "exit codes", ("tune",): "--global-batch", ("show",): "PLAN", ("export",): "--to"}
    assert expected[command] in out


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autofit", *words]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One real run: a parent, a warm child, a limited child."""
    folder = tmp_path_factory.mktemp("real")
    words = ["tune", f"{TARGETS}:make_mlp", "--memory", "64MiB", "--time", "10min", "--device", "cpu"]
    words += ["--strategies", "batching", "--arg", "width=12"]
    code = (
        "import sys\n"
        "from autofit.cli import main\n"
        f"code = main({words!r})\n"
        "loaded = [name for name in sys.modules if name == 'torch' or 'target' in name]\n"
        "sys.exit(code or (f'loaded in the parent: {loaded}' if loaded else 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    return folder, done


@pytest.mark.slow
def test_a_real_run_keeps_torch_and_the_users_code_out_of_the_parent(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = tuned
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("Use micro batch", "Keep your own setting"))
    assert "noise of the user's file" not in done.stdout + done.stderr
    assert "\r" not in done.stderr  # no bar: stderr is no terminal
    assert "autofit: tuning for the CPU (" in done.stderr
    assert "accelerator was found" not in done.stderr + done.stdout  # --device cpu was given
    assert "autofit: searching" in done.stderr
    assert (folder / ".autofit" / "study.db").stat().st_mode & 0o777 == 0o600
    fit = autofit.load(folder / "autofit.yaml")
    assert fit.plan.global_batch_size == 16
    assert fit.proof.worst_steps >= 3
    assert fit.proof.memory.judged_bytes <= 64 * 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("make_mlp", "--memory", "1500B", "--strategies", "batching"), 3, "no plan fits into"),
        (("make_failing", "--memory", "64MiB"), 5, "ValueError: expected nine columns"),
        (("make_not_finite", "--memory", "64MiB"), 5, "not finite"),
        (("make_mlp", "--memory", "64MiB", "--strategies", "magic"), 2, "unknown strategy 'magic'"),
        (("make_nothing",), 2, "has no function 'make_nothing'"),
        (("make_mlp", "--device", "tpu"), 2, "no device 'tpu' here"),
    ],
    ids=str,
)
def test_what_a_real_child_refuses_has_its_exit_code(
    words: tuple[str, ...], code: int, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = run("tune", f"{TARGETS}:{words[0]}", *words[1:], "--study", ":memory:", "--json", "--quiet")
    told = json.loads(out)["error"]
    assert (found, told["exit_code"]) == (code, code), err
    assert said in err
    assert "\x1b" not in err
    if code == 5:
        assert "out of memory" not in err.lower()
    if words[0] == "make_failing":
        assert "targets.py" in told["traceback"]
    assert not (tmp_path / "autofit.yaml").exists()


class Running:
    """A real command that is stopped in the middle."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "opened"
        arguments = ["--arg", f"marker={self.marker}", "--memory", "64MiB", "--device", "cpu"]
        self.words = command("tune", f"{TARGETS}:make_slow", *arguments, "--strategies", "batching")
        self.folder = folder
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        # Where the tests run in the background of a shell it is ignored, which a child would inherit.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self.popen()
        finally:
            signal.signal(signal.SIGINT, before)

    def popen(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.words,
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_trials(self, count: int) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            count -= "samples/s" in line
            if count <= 0:
                return
        raise AssertionError(f"it ended too early with {self.process.wait()}")

    def children_are_gone(self, within_s: float = 60.0) -> bool:
        pids = [int(line) for line in self.marker.read_text().split()]
        assert pids, "no child was started"
        until = time.monotonic() + within_s
        while any(map(is_alive, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        return not any(map(is_alive, pids))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_130_and_leaves_no_process(sign: signal.Signals, running: Running) -> None:
    running.wait_for_trials(1)
    running.process.send_signal(sign)
    out, err = running.process.communicate(timeout=120)
    assert running.process.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err
    assert out == ""
    assert running.children_are_gone()
    assert not (running.folder / "autofit.yaml").exists()


@pytest.mark.slow
def test_after_kill_9_the_same_command_goes_on(running: Running) -> None:
    running.wait_for_trials(2)
    running.process.kill()
    running.process.communicate()
    assert running.children_are_gone()
    running.process = running.start()
    out, err = running.process.communicate(timeout=240)
    assert running.process.returncode == 0, err
    known = [line for line in err.splitlines() if "known from earlier runs" in line]
    assert known
    assert int(known[0].split()[1]) >= 2
    assert out.startswith(("Use", "Keep"))
    assert autofit.load(running.folder / "autofit.yaml").proof.worst_steps >= 3


def test_a_reader_that_has_enough_is_no_failure() -> None:
    code = "import sys; from autofit.cli import outcome\nimport argparse\n"
    code += "given = argparse.Namespace(json=False)\n"
    code += "sys.exit(outcome.run(lambda given: [print('line' * 9999) for _ in range(99)] and 0, given))"
    script = f'{sys.executable} -c "$CODE" | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env={**os.environ, "CODE": code}, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("0", "")
