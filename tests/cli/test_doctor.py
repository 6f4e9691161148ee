"""`autofit doctor`: targets and scripts, what is found in them, one JSON document, exit codes and messages."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import autofit
from autofit import cli
from autofit.cli import doctor
from autofit.cli.arguments import FINDINGS
from autofit.core.errors import Busy, DevicePoisoned, NothingFits
from autofit.doctor import findings
from autofit.doctor.diagnosis import Diagnosis
from tests.cli.conftest import Run
from tests.cli.processes import TARGETS, command, environment

MAKE = """
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import autofit

    KEPT = []


    def make_leaking(width=1024, mode="train"):
        print("noise of the user's file")
        torch.manual_seed(0)
        model = nn.Linear(64, width)
        loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.randint(width, (512,))), batch_size=256)

        def step_fn(model, batch):
            outputs = model(batch[0])
            KEPT.append(outputs)
            return F.cross_entropy(outputs, batch[1])

        return autofit.Workload(model, loader, step_fn=step_fn, mode=mode)


    def make_evaluated():
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
        loader = DataLoader(TensorDataset(torch.randn(512, 64), torch.randint(64, (512,))), batch_size=256)
        model.eval()
        return {"model": model, "loader": loader, "loss_fn": F.cross_entropy}


    def make_raising():
        workload = make_leaking()

        def step_fn(model, batch):
            raise ValueError("a step that cannot run")

        return autofit.Workload(workload.model, workload.loader, step_fn=step_fn)
"""
TRAIN = """
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    torch.manual_seed(0)
    model = nn.Linear(64, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(5120, 64), torch.randint(1024, (5120,))), batch_size=256)
    kept = []
    for step, (inputs, targets) in enumerate(loader):
        if step == steps:
            {end}
        outputs = model(inputs)
        kept.append(outputs.detach())
        nn.functional.cross_entropy(outputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained to the end")
"""
STOP = "break"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory. What a script or a target changes in this process is restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return tmp_path


@pytest.fixture
def target(folder: Path) -> str:
    """A file whose functions make workloads."""
    (folder / "train.py").write_text(textwrap.dedent(MAKE), encoding="utf-8")
    return "train.py"


@pytest.fixture
def script(folder: Path) -> Callable[..., str]:
    """Writes a script that keeps 1 MiB of outputs in each step and ends early as it is given."""

    def write(end: str = STOP) -> str:
        (folder / "loop.py").write_text(textwrap.dedent(TRAIN).replace("{end}", end), encoding="utf-8")
        return "loop.py"

    return write


def test_a_target_is_watched_and_what_it_prints_is_not_in_the_result(target: str, run: Run) -> None:
    code, out, err = run("doctor", f"{target}:make_leaking", "--device", "cpu")
    assert code == 0
    text = " ".join(out.split())
    assert text.startswith("train.py:make_leaking: watched 6 steps of 256 samples on ")
    assert "graph-kept" in text or "grows" in text
    assert "`KEPT[" in text
    assert "train.py:" in text
    assert "noise of the user's file" in err
    assert "autofit: watching 7 training steps on " in err
    assert "\x1b" not in out, "a pipe gets no colours"


def test_the_line_of_a_target_that_leaves_its_model_in_evaluation_mode_is_named(target: str, run: Run) -> None:
    code, out, _ = run("doctor", f"{target}:make_evaluated", "--device", "cpu", "--only", "modes", "--fail-on", "modes")
    line = 1 + textwrap.dedent(MAKE).splitlines().index("    model.eval()")
    assert code == 4
    assert f"into which train.py:{line} has put it" in " ".join(out.split())


def test_json_is_one_document_that_is_a_diagnosis(target: str, run: Run) -> None:
    code, out, err = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--json", "--quiet")
    read = json.loads(out)
    assert code == 0
    assert "autofit:" not in err
    assert read["schema"] == "autofit.doctor/1"
    found = Diagnosis.model_validate_json(out)
    assert found.target == "train.py:make_leaking"
    assert found.device_type == "cpu"
    assert found.samples == 256
    assert {each.id for each in found.findings if not each.minor} & {"grows", "graph-kept"}
    assert set(found.checked) | {each.id for each in found.unchecked} == set(FINDINGS)


def test_the_document_is_what_the_schema_says(target: str, run: Run) -> None:
    code, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--json", "--quiet")
    schema = json.loads((Path(autofit.__file__).parent / "doctor" / "doctor.schema.json").read_text(encoding="utf-8"))
    assert code == 0
    pytest.importorskip("jsonschema").validate(json.loads(out), schema)


def test_arguments_reach_the_target_and_the_workload(target: str, run: Run) -> None:
    words = ["--arg", "width=512", "--global-batch", "512", "--max-grad-norm", "1.0", "--seed", "3"]
    code, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--json", *words)
    found = Diagnosis.model_validate_json(out)
    assert code == 0
    assert found.samples == 512
    assert max(each.size.bytes_per_step or 0 for each in found.findings if each.size) == 512 * 512 * 4


@pytest.mark.parametrize(
    ("words", "checked"),
    [
        (("--only", "grows"), ["grows"]),
        (("--only", "grows, dead-at-peak", "--skip", "grows"), ["dead-at-peak"]),
        (("--skip", "grows"), [name for name in FINDINGS if name != "grows"]),
    ],
)
def test_only_and_skip_choose_what_is_looked_for(
    words: tuple[str, ...], checked: list[str], target: str, run: Run
) -> None:
    code, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--json", *words)
    assert code == 0
    found = Diagnosis.model_validate_json(out)
    assert {*found.checked, *(each.id for each in found.unchecked)} == set(checked)
    assert {each["id"] for each in json.loads(out)["findings"]} <= set(checked)


def test_without_further_steps_what_needs_them_is_not_looked_for(target: str, run: Run) -> None:
    words = ("doctor", f"{target}:make_leaking", "--device", "cpu", "--json")
    found = [Diagnosis.model_validate_json(run(*words, *more)[1]) for more in ((), ("--no-runs",))]
    left_out = [{each.id for each in one.unchecked} for one in found]
    assert left_out[1] - left_out[0] == {
        "heavy-module", "attention-scores", "logits", "optimizer-peak", "padding", "loader", "wide-mask",
    }  # fmt: skip
    assert all(each.size is None or each.size.basis != "measured" for each in found[1].findings)


@pytest.mark.parametrize(
    ("names", "code"),
    [("any", 4), ("grows,graph-kept,dead-at-peak", 4), ("retain-graph", 0)],
)
def test_fail_on_gives_exit_code_4_where_something_of_it_is_found(names: str, code: int, target: str, run: Run) -> None:
    found, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--fail-on", names)
    assert found == code
    assert out.startswith("train.py:make_leaking: watched")
    found, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--fail-on", names, "--json")
    assert (found, json.loads(out)["schema"]) == (code, "autofit.doctor/1")


def test_minor_findings_are_shown_with_all_and_never_fail(target: str, run: Run) -> None:
    words = ["doctor", f"{target}:make_leaking", "--device", "cpu", "--arg", "width=4", "--fail-on", "any"]
    code, out, _ = run(*words)
    assert code == 0
    assert "(--all shows them)" in out
    assert "`KEPT[" not in out
    code, out, _ = run(*words, "--all")
    assert code == 0
    assert "`KEPT[" in out


def test_a_script_is_ended_once_seven_steps_are_watched(script: Callable[..., str], run: Run) -> None:
    code, out, err = run("doctor", "--script", script(), "--fail-on", "grows")
    assert code == 4
    assert "trained to the end" not in out + err
    text = " ".join(out.split())
    assert text.startswith("loop.py: watched 6 steps on ")
    assert "memory grows by 1 MiB per step" in text.lower().replace("mib", "MiB")
    assert "`kept[" in text
    assert "loop.py:16" in text
    assert "autofit: running loop.py until 7 optimizer steps are done ..." in err


def test_a_script_that_ends_early_gives_what_was_found_until_then(script: Callable[..., str], run: Run) -> None:
    code, out, err = run("doctor", "--script", script(), "--json", "--", "5")
    found = Diagnosis.model_validate_json(out)
    assert code == 0
    assert "trained to the end" in err
    assert 2 <= found.steps < 6
    assert any("it ended before all steps were observed" in note for note in found.notes)
    assert [each.reason for each in found.unchecked if each.id == "dead-at-peak"] == [
        "no further step came, in which it is asked who holds what at the peak"
    ]


@pytest.mark.parametrize("end", ["break", "sys.exit(0)", "raise ValueError('damaged')"])
def test_what_the_globals_keep_of_a_script_that_ends_early_is_found_with_its_holder(
    end: str, script: Callable[..., str], run: Run
) -> None:
    _, out, _ = run("doctor", "--script", script(end), "--json", "--", "6")
    [grows] = [each for each in Diagnosis.model_validate_json(out).findings if each.id == "grows"]
    assert "held by `kept[4]` (of 6 items) in __main__" in grows.what


@pytest.mark.parametrize("ends", [True, False])
def test_what_the_functions_keep_of_a_script_that_ends_early_is_found_or_not_checked(
    ends: bool, folder: Path, run: Run
) -> None:
    body = textwrap.indent(textwrap.dedent(TRAIN).replace("{end}", STOP if ends else "raise ValueError"), "    ")
    (folder / "loop.py").write_text(f"def main():\n{body}\nmain()\n", encoding="utf-8")
    _, out, _ = run("doctor", "--script", "loop.py", "--json", "--", "6")
    found = Diagnosis.model_validate_json(out)
    assert [each.reason for each in found.unchecked if each.id == "grows"] == [
        "the script had ended, and what its functions had kept was gone"
    ] * ends
    assert ["`kept[4]` (of 6 items) in main" in each.what for each in found.findings if each.id == "grows"] == [
        True
    ] * (not ends)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("raise ValueError('the data are damaged')", "ValueError: the data are damaged"),
        ("sys.exit('no more data')", "SystemExit: no more data"),
    ],
)
def test_a_script_that_fails_later_shows_what_was_found_and_fails(
    end: str, says: str, script: Callable[..., str], run: Run
) -> None:
    code, out, err = run("doctor", "--script", script(end), "--json", "--", "5")
    found = Diagnosis.model_validate_json(out)
    assert (code, found.failed) == (5, True)
    assert says in found.notes[0]
    assert ("Traceback" in err) == end.startswith("raise")


def test_a_script_that_ends_by_exit_code_0_has_not_failed(script: Callable[..., str], run: Run) -> None:
    code, out, _ = run("doctor", "--script", script("sys.exit(0)"), "--json", "--", "5")
    assert (code, Diagnosis.model_validate_json(out).failed) == (0, False)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (
            "raise ValueError('the data are damaged.')",
            "it raised ValueError: the data are damaged. Fix it first.",
        ),
        (
            "raise torch.OutOfMemoryError('CUDA out of memory.')",
            "out of memory. Run it with a smaller batch",
        ),
        ("sys.exit(3)", "it ended with the exit code 3. Fix it first."),
    ],
)
def test_a_script_that_fails_before_anything_was_seen_is_exit_code_5(
    end: str, says: str, script: Callable[..., str], run: Run
) -> None:
    code, out, err = run("doctor", "--script", script(end), "--", "1")
    assert (code, out) == (5, "")
    assert says in " ".join(err.split())
    assert ("Traceback" in err) == end.startswith("raise")
    code, out, _ = run("doctor", "--script", script(end), "--json", "--", "0")
    error = json.loads(out)["error"]
    assert (code, error["type"], error["exit_code"]) == (5, "UserCodeError", 5)
    assert says in error["message"]


def test_a_script_that_lacks_an_argument_is_to_get_it_after_two_dashes(folder: Path, run: Run) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args()\n"
    (folder / "loop.py").write_text(text, encoding="utf-8")
    code, _, err = run("doctor", "--script", "loop.py")
    assert code == 5
    assert "exit code 2. Give it its arguments after `--`." in " ".join(err.split())


def test_a_script_that_does_not_train_here_is_a_usage_error(script: Callable[..., str], run: Run) -> None:
    code, out, err = run("doctor", "--script", script(), "--", "1")
    assert (code, out) == (2, "")
    assert "found 1 optimizer step that loop.py made in this process; expected at least 2" in " ".join(err.split())


def test_trackers_of_a_script_do_not_log_the_few_steps(folder: Path, run: Run) -> None:
    (folder / "loop.py").write_text("import os, sys; sys.exit('mode ' + os.environ['WANDB_MODE'])")
    code, _, err = run("doctor", "--script", "loop.py")
    assert code == 5
    assert "mode disabled" in err


def test_the_users_error_in_a_target_is_exit_code_5_with_its_traceback(target: str, run: Run) -> None:
    code, out, err = run("doctor", f"{target}:make_raising", "--device", "cpu")
    assert (code, out) == (5, "")
    assert "a step that cannot run" in err
    assert "train.py" in err
    code, out, _ = run("doctor", f"{target}:make_raising", "--device", "cpu", "--json")
    assert (code, json.loads(out)["error"]["type"]) == (5, "UserCodeError")


def test_a_workload_for_inference_is_refused(target: str, run: Run) -> None:
    code, out, err = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--arg", "mode=inference")
    assert (code, out) == (2, "")
    assert 'found mode="inference"; expected a training' in " ".join(err.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "one of the arguments TARGET --script is required"),
        (("train.py", "--script", "loop.py"), "not allowed with argument"),
        (("--script", "absent.py"), "found no file absent.py"),
        (("train.py", "--only", "leaks"), "found 'leaks' as a kind of finding; expected some of grows, "),
        (("train.py", "--skip", "leaks"), "found 'leaks' as a kind of finding"),
        (("train.py", "--fail-on", "grows,leaks"), "found 'leaks' as a kind of finding"),
        (("train.py", "--only", "grows", "--skip", "grows"), "found no kind of finding to look for"),
        (("--script", "loop.py", "--seed", "0", "--global-batch", "4"), "found --global-batch, --seed beside --script"),
        (("train.py", "--html", "absent/doctor.html"), "is not a writable directory"),
        (("train.py", "--", "--lr", "1"), "found arguments after `--`"),
        (("train.py", "--arg", "width"), "not of the form NAME=VALUE"),
        (("train.py:make_leaking", "--device", "abacus"), "abacus"),
    ],
)
def test_bad_words_are_usage_errors(words: tuple[str, ...], says: str, target: str, run: Run) -> None:
    code, out, err = run("doctor", *words)
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    at = words.index("--") if "--" in words else len(words)
    code, out, _ = run("doctor", *words[:at], "--json", *words[at:])
    assert code == 2
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted; nothing was found or written"),
        (NothingFits("not even one sample fits"), 3, "not even one sample fits"),
        (Busy("in use"), 6, "in use"),
        (DevicePoisoned("it does not answer"), 8, "it does not answer"),
        (RuntimeError("a defect"), 1, "internal error: a defect"),
    ],
)
def test_failures_have_their_exit_codes(
    error: BaseException, code: int, says: str, target: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: object, **named: object) -> Diagnosis:
        raise error

    monkeypatch.setattr(doctor, "diagnose_workload", fails)
    found, out, err = run("doctor", f"{target}:make_leaking", "--device", "cpu")
    assert (found, out) == (code, "")
    assert says in err
    found, out, _ = run("doctor", f"{target}:make_leaking", "--device", "cpu", "--json")
    assert (found, json.loads(out)["error"]["exit_code"]) == (code, code)


def test_help_completion_and_the_family_name_the_same_kinds() -> None:
    assert tuple(member.id for member in findings.BUILT_IN) == FINDINGS
    assert "something of --fail-on was found" in cli._EXIT_CODES


def test_the_real_command_watches_a_target(folder: Path) -> None:
    words = command("doctor", f"{TARGETS}:make_mlp", "--device", "cpu", "--json")
    done = subprocess.run(words, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = Diagnosis.model_validate_json(done.stdout)
    assert [each.id for each in found.findings if not each.minor] == []
    assert found.samples == 16
    assert "noise of the user's file" in done.stderr
    assert list(folder.iterdir()) == []
