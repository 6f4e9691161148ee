"""`autofit run`: scripts as people write them, tuned where they train; and scripts that cannot be tuned."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autofit
from autofit.cli.run import _APPLIED, _LINES
from autofit.core import errors
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.integrations import observed_loop
from autofit.search.search import SearchInterrupted
from tests.cli.conftest import Run
from tests.cli.processes import command, environment
from tests.conformance.test_exporters import answer

SCRIPTS = Path(__file__).parent / "scripts"
LOOP = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randint(2, (16,))), batch_size=4)
    for inputs, targets in loader:
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", model.weight.sum().item())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a script to an empty working directory. What a script changes in this process is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(text: str) -> str:
        (tmp_path / "train.py").write_text(textwrap.dedent(text), encoding="utf-8")
        return "train.py"

    return write


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A search that answers at once, or fails with `asked["fails"]`; what it was asked."""
    asked = dict[str, Any]()

    def tune(model: Any, loader: Any, **named: Any) -> Fit:
        asked.update(named, model=model, loader=loader)
        if "fails" in asked:
            raise asked["fails"]
        return Fit(answer(Plan(values={"micro_batch_size": 2, "accumulation_steps": 2})))

    monkeypatch.setattr(observed_loop, "tune", tune)
    return asked


def ran(name: str, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a script under a short search of its batch, in a process of its own."""
    flags = ["--time", "3s", "--only", "batching", "--memory", "1GiB", "-o", "plan.yaml"]
    line = command("run", str(SCRIPTS / name), *flags, *words)
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=240)


def alone(name: str, folder: Path, *words: str) -> str:
    """Returns what a script prints without autofit."""
    line = [sys.executable, str(SCRIPTS / name), *words]
    return subprocess.run(line, cwd=folder, env=environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "lines"),
    [
        ("plain_loop.py", ["--epochs", "2"], ""),
        ("nano_gpt.py", [], "step_fn=lambda model, batch: model(**batch)[1] in fit.prepare"),
        ("accelerate_loop.py", [], "accelerator = Accelerator(**accelerator_arguments('plan.yaml'))"),
    ],
)
def test_a_loop_is_tuned_and_trains_as_before(name: str, words: list[str], lines: str, tmp_path: Path) -> None:
    done = ran(name, tmp_path, *(["--", *words] if words else []))
    assert done.returncode == 0, done.stderr
    fit = autofit.load(tmp_path / "plan.yaml")
    assert fit.proof.worst_steps >= 3
    assert fit.plan.global_batch_size == {"plain_loop.py": 16, "nano_gpt.py": 8, "accelerate_loop.py": 32}[name]
    assert "autofit: plan written to plan.yaml" in done.stderr
    if fit.plan != fit.baseline.plan:
        assert "the script continues as it is. To train under the plan" in done.stderr
        assert lines in done.stderr
    assert done.stdout == alone(name, tmp_path, *words)  # the same weights, to the last bit


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_trainer.py", "lightning_fit.py"])
def test_a_trainer_trains_under_the_plan(name: str, tmp_path: Path) -> None:
    done = ran(name, tmp_path)
    assert done.returncode == 0, done.stderr
    plan = autofit.load(tmp_path / "plan.yaml").plan
    assert f"steps of {plan.micro_batch_size} x {plan.accumulation_steps}\n" in done.stdout
    assert _APPLIED in done.stderr
    assert plan.global_batch_size == {"hf_trainer.py": 16, "lightning_fit.py": 32}[name]


@pytest.mark.slow
def test_ctrl_c_in_the_search_ends_script_and_search_with_the_plan_so_far(tmp_path: Path) -> None:
    line = command("run", str(SCRIPTS / "nano_gpt.py"), "--time", "120s", "--memory", "1GiB")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else it is ignored in a shell's background
    try:
        process = subprocess.Popen(line, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr is not None
    for text in process.stderr:
        if "trial 2" in text:
            break
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130, rest
    assert autofit.load(tmp_path / "autofit.yaml").proof.worst_steps >= 3
    assert 'File "' in rest
    assert "KeyboardInterrupt" in rest


def test_the_loop_and_the_options_reach_the_search(
    script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    words = "--time 90s --memory 20GiB --numerics exact --only batching,precision --set micro_batch_size=2 --seed 7"
    code, out, err = run(
        "run", script(LOOP), *words.split(), "--max-grad-norm", "1.5", "--study", ":memory:", "-o", "p.yaml"
    )
    assert code == 0, err
    expected = {
        "global_batch_size": 4, "time_budget": "90s", "memory_budget": "20GiB", "numerics": "exact", "seed": 7,
        "strategies": ("batching", "precision"), "pinned": {"micro_batch_size": 2}, "max_grad_norm": 1.5,
        "study": ":memory:", "progress": True,
    }  # fmt: skip
    assert {name: asked[name] for name in expected} == expected
    assert asked["loader"].batch_size == 4
    assert autofit.load("p.yaml").plan.micro_batch_size == 2
    assert out.startswith("trained ")
    assert "write the lines above in place of its loop." in err


@pytest.mark.slow
def test_a_compiled_model_is_tuned_without_a_warning_of_hooks(
    script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    code, out, err = run(
        "run", script(LOOP.replace("nn.Linear(3, 2)", "torch.compile(nn.Linear(3, 2), backend='eager')"))
    )
    assert code == 0, err
    assert out.startswith("trained ")
    assert "hooks" not in err
    assert type(asked["model"]).__name__ == "OptimizedModule"


def test_a_script_has_its_arguments_its_name_and_its_folder(script: Callable[[str], str], run: Run) -> None:
    Path("beside.py").write_text("NAME = 'beside'", encoding="utf-8")
    text = """
        import sys, beside
        print(sys.argv, __name__, __file__, beside.NAME, sys.modules["__main__"].beside is beside)
    """
    _, out, _ = run("run", script(text), "--time", "5s", "--", "--epochs", "3", "--", "--json")
    assert out == "['train.py', '--epochs', '3', '--', '--json'] __main__ train.py beside True\n"


@pytest.mark.parametrize(
    ("text", "code", "shown"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 0, "made no optimizer step in this process"),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("1 / 0", 1, 'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n'),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("from autofit.core.errors import Busy; raise Busy('the device')", 1, "Busy: the device"),
        ("x = (", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_that_of_the_script(
    text: str, code: int, shown: str, script: Callable[[str], str], run: Run
) -> None:
    found, out, err = run("run", script(text))
    assert (found, out) == (code, "")
    assert shown in err
    assert ("made no optimizer step" in err) == (code == 0)
    assert not Path("autofit.yaml").exists()


def test_a_script_that_does_not_train_says_which_lines_to_add(script: Callable[[str], str], run: Run) -> None:
    code, out, err = run("run", script("print('done')"), "--quiet")
    assert (code, out) == (0, "done\n")
    assert err == f"autofit: train.py made no optimizer step in this process, so that nothing was tuned. {_LINES}\n"


@pytest.mark.parametrize("words", [(), ("--quiet",)])
def test_a_script_that_tunes_by_itself_is_left_alone(
    words: tuple[str, ...], script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    tuning = """
    import autofit
    fit = autofit.tune(model, loader, optimizer=optimizer, time_budget="20s", strategies=["batching"],
                       global_batch_size=4, device="cpu", study=":memory:", progress=False)
    """
    text = textwrap.dedent(LOOP).replace("\nfor ", f"\n{textwrap.dedent(tuning)}\nfor ", 1)
    assert "autofit.tune" in text
    code, out, err = run("run", script(text), *words)
    assert (code, asked) == (0, {})
    assert out.startswith("trained ")
    note = "autofit: train.py calls autofit.tune itself: nothing else was tuned, and autofit.yaml is not written.\n"
    assert err == ("" if words else note)
    assert not Path("autofit.yaml").exists()


def test_a_loop_that_cannot_be_tuned_says_why_and_which_lines_to_add(
    script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    text = LOOP.replace("cross_entropy(model(inputs), targets)", "cross_entropy(model(inputs), targets).square()")
    code, out, err = run("run", script(text))
    assert (code, asked) == (0, {})
    assert out.startswith("trained ")
    assert "train.py was not tuned: found no rule that gives the loss of the loop" in err
    assert err.endswith(f"{_LINES}\n")


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (errors.NothingFits("no plan fits"), False),
        (errors.Busy("the device is in use"), False),
        (errors.WorkloadError("the batches have no samples"), True),
        (ZeroDivisionError("a defect"), False),
    ],
)
def test_a_search_that_fails_leaves_the_script(
    error: Exception, advised: bool, script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    asked["fails"] = error
    code, out, err = run("run", script(LOOP))
    assert code == 0
    assert out.startswith("trained ")
    assert f"train.py was not tuned: {'' if isinstance(error, errors.AutofitError) else 'internal error, '}" in err
    assert str(error) in err
    assert (_LINES in err) == advised


@pytest.mark.parametrize("error", [errors.RestoreError("model.weight"), errors.DevicePoisoned("cuda:0")])
def test_a_script_whose_state_is_not_restored_does_not_train(
    error: errors.AutofitError, script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    asked["fails"] = error
    code, out, err = run("run", script(LOOP))
    assert (code, out) == (error.exit_code, "")
    assert str(error) in err


def test_an_interrupted_search_is_an_interrupt_for_the_script(
    script: Callable[[str], str], asked: dict[str, Any], run: Run
) -> None:
    asked["fails"] = SearchInterrupted(answer(Plan(values={"micro_batch_size": 2, "accumulation_steps": 2})))
    loop = textwrap.indent(textwrap.dedent(LOOP), "    ")
    text = f"try:\n{loop}\nexcept KeyboardInterrupt:\n    print('saved')\n    raise"
    code, out, _ = run("run", script(text))
    assert (code, out) == (130, "saved\n")
    assert autofit.load("autofit.yaml").plan.micro_batch_size == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_a_training_in_a_process_of_the_script_is_left_alone(method: str, tmp_path: Path) -> None:
    loop = textwrap.indent(textwrap.dedent(LOOP), "    ")
    text = f"""\
import multiprocessing

def train():
{loop}

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=train)
    process.start()
    process.join()
    print("ended with", process.exitcode)
"""
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    line = command("run", "train.py", "--time", "5s")
    done = subprocess.run(
        line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained ")
    assert done.stdout.endswith("ended with 0\n")
    assert done.stderr.count("made no optimizer step in this process") == 1
    assert "plan written" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "found no file missing.py; expected a Python script that trains"),
        (["train.py", "-o", "train.py"], "train.py"),
        (["train.py", "--time", "soon"], "soon"),
        (["train.py", "--epochs", "3"], "unrecognized arguments: --epochs 3"),
        (["train.py", "--json"], "unrecognized arguments: --json"),
    ],
)
def test_what_cannot_be_used_is_refused_before_the_script_runs(
    words: list[str], message: str, script: Callable[[str], str], run: Run
) -> None:
    script("print('ran')")
    code, out, err = run("run", *words)
    assert code == 2
    assert "ran" not in out
    assert message in err
