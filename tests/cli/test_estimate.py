"""`autofit estimate`: exit codes, one JSON document, a drawing where a terminal can show it, and no process left."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from autofit import cli
from autofit.cli import estimate as command
from autofit.cli.arguments import LAYOUTS
from autofit.core.briefing import Layout
from autofit.core.errors import Untraceable, UserCodeError
from autofit.estimation.estimate import estimate
from autofit.estimation.estimation import Estimation
from autofit.probing.remote.bench import Target
from tests.cli.processes import ROOT, TARGETS
from tests.estimation.traces import MIB, briefing, trace_of

Run = Callable[..., tuple[int, str, str]]


class Estimating:
    """Stands in for the child process: estimates a made-up workload, or fails."""

    def __init__(self) -> None:
        self.target, self.budget = Target(""), 5000 * MIB
        self.fails: BaseException | None = None

    def __call__(self, target: Target, beat: Callable[[str], None], *, with_laws: bool) -> Estimation:
        self.target = target
        beat("trace")
        if self.fails is not None:
            raise self.fails
        return estimate(briefing(self.budget), trace_of, target.name, with_laws=with_laws)


@pytest.fixture
def estimating(monkeypatch: pytest.MonkeyPatch) -> Estimating:
    made = Estimating()
    monkeypatch.setattr(command, "estimate_target", made)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process; returns exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = cli.main(("estimate", *words))
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def test_the_drawing_is_on_stdout_and_nothing_else_anywhere(estimating: Estimating, run: Run) -> None:
    code, out, err = run("train.py:make", "--device", "H200")
    assert (code, err) == (0, "")
    assert out.startswith("train.py:make on Test: estimated, nothing was run")
    assert "fp32 (baseline)" in out
    assert "\x1b" not in out, "a pipe gets no colours"


def test_json_is_one_document(estimating: Estimating, run: Run) -> None:
    code, out, _ = run("train.py:make", "--device", "H200", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "autofit.estimate/1"
    assert Estimation.model_validate(told).rows[0].name == "fp32"
    assert told["rows"][0]["value"] == "fp32"


def test_the_page_is_written_beside_the_drawing_and_replaces_only_an_earlier_one(
    estimating: Estimating, run: Run, tmp_path: Path
) -> None:
    page, other = tmp_path / "estimate.html", tmp_path / "other.html"
    for _ in range(2):
        code, out, err = run("train.py:make", "--device", "H200", "--html", str(page))
        assert (code, err) == (0, "")
        assert out.startswith("train.py:make on Test")
    assert "<title>train.py:make – autofit estimate</title>" in page.read_text()
    other.write_text("mine")
    estimating.fails = AssertionError("nothing may be estimated")
    code, _, err = run("train.py:make", "--device", "H200", "--html", str(other))
    assert (code, other.read_text()) == (2, "mine")
    assert "not an autofit report" in " ".join(err.split())
    code, _, err = run("train.py:make", "--device", "H200", "--html", str(tmp_path / "missing" / "estimate.html"))
    assert code == 2
    assert "not a writable directory" in " ".join(err.split())


def test_what_is_asked_reaches_the_child(estimating: Estimating, run: Run) -> None:
    words = ["--device", "h200", "--memory", "20GiB", "--global-batch", "64", "--numerics", "exact", "--seed", "3"]
    words += ["--strategies", "precision, batching", "--max-grad-norm", "1.5", "--mode", "train", "--arg", "depth=3"]
    assert run("train.py:make", *words)[0] == 0
    target = estimating.target
    assert target.name == "train.py:make"
    assert target.arguments == {"depth": 3}
    assert target.overrides == {"global_batch_size": 64, "mode": "train", "max_grad_norm": 1.5}
    assert target.stand_in is not None
    assert target.stand_in.name == "NVIDIA H200"
    options = target.options
    assert (options.memory_budget, options.numerics, options.seed) == ("20GiB", "exact", 3)
    assert options.strategies == ("precision", "batching")


def test_ranks_and_their_layout_reach_the_child(estimating: Estimating, run: Run) -> None:
    assert run("train.py:make", "--device", "H200")[0] == 0
    assert (estimating.target.options.ranks, estimating.target.options.layout) == (1, None)
    assert run("train.py:make", "--device", "H200", "--ranks", "8", "--layout", "full")[0] == 0
    assert (estimating.target.options.ranks, estimating.target.options.layout) == (8, "full")
    assert get_args(Layout) == LAYOUTS


def test_memory_may_be_a_fraction_of_a_named_device(estimating: Estimating, run: Run) -> None:
    assert run("train.py", "--device", "cpu", "--memory", "0.5")[0] == 0
    assert estimating.target.options.memory_budget == 0.5
    assert estimating.target.stand_in is not None
    assert estimating.target.stand_in.type == "cpu"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "neither a device nor an amount of memory"),
        (("--memory", "0.5"), "neither a device nor an amount of memory"),
        (("--device", "H9000"), "unknown device 'H9000'"),
        (("--device", "A100"), "may be any of A100 40GB, A100 80GB"),
        (("--device", "cuda"), "name of a card"),
        (("--device", "H200", "--memory", "7XB"), "cannot read '7XB'"),
        (("--device", "H200", "--arg", "depth"), "not of the form NAME=VALUE"),
        (("--device", "H200", "--numerics", "odd"), "invalid choice"),
        (("--device", "H200", "--ranks", "0"), "expected a whole number of at least 1"),
        (("--device", "H200", "--layout", "full"), "found the layout 'full' for one rank"),
        (("--device", "H200", "--ranks", "1", "--layout", "full"), "found the layout 'full' for one rank"),
        (("--device", "H200", "--ranks", "2", "--layout", "half"), "invalid choice"),
    ],
)
def test_bad_words_are_usage_errors_before_anything_starts(
    words: tuple[str, ...], says: str, estimating: Estimating, run: Run
) -> None:
    code, out, err = run("train.py:make", *words)
    assert (code, out) == (2, "")
    assert says in err
    assert estimating.target.name == ""


def test_nothing_fits_is_drawn_and_has_its_exit_code(estimating: Estimating, run: Run) -> None:
    estimating.budget = 250 * MIB
    code, out, _ = run("train.py:make", "--memory", "250MiB")
    assert code == 3
    assert "150 MiB more than the budget" in " ".join(out.split())
    code, out, _ = run("train.py:make", "--memory", "250MiB", "--json")
    assert code == 3
    assert json.loads(out)["shortfall"]


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Untraceable("aten.nonzero depends on data", "train.py:7", "Run autofit tune."), 2, "Run autofit tune."),
        (UserCodeError("make raised ValueError: no", "line 3"), 5, "line 3"),
        (KeyboardInterrupt(), 130, "nothing was estimated"),
    ],
)
def test_failures_have_their_exit_codes(
    error: BaseException, code: int, says: str, estimating: Estimating, run: Run
) -> None:
    estimating.fails = error
    found, out, err = run("train.py:make", "--device", "H200")
    assert (found, out) == (code, "")
    assert says in err
    found, out, _ = run("train.py:make", "--device", "H200", "--json")
    assert json.loads(out)["error"]["exit_code"] == found == code


@pytest.mark.slow
def test_a_whole_run_for_a_card_that_is_not_here(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    command_line = [sys.executable, "-m", "autofit", "estimate", f"{TARGETS}:make_mlp", "--memory", "2GiB"]
    done = subprocess.run(
        command_line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "noise of the user's file" not in done.stdout
    assert "context and libraries" in done.stdout
    assert list(tmp_path.iterdir()) == [], "an estimate writes nothing"
