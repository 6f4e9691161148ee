"""The code that applies a plan, and the command that repeats its search, without secrets."""

import ast
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import autofit
from autofit.core.answer import Answer
from autofit.reports.applying import apply_code, applying_lines, command_line, fitted, tuning_call
from tests.recorded import recorded_search


def answer() -> Answer:
    found = recorded_search().answer
    assert found is not None
    return found


def test_the_code_loads_the_plan_file_and_trains() -> None:
    code = apply_code(answer(), "plans/it's.yaml")
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert """autofit.load("plans/it's.yaml")""" in calls
    assert "fit.prepare(model, loader, optimizer)" in calls
    assert "step(batch)" in calls
    assert not code.startswith("#")


def test_without_a_plan_file_it_says_to_save_first() -> None:
    code = apply_code(answer())
    assert code.startswith("# Save the plan first: fit.save('autofit.yaml')")
    ast.parse(code)


def test_a_plan_of_several_ranks_is_applied_in_a_process_group() -> None:
    r = answer()
    settings = {**r.environment.settings, "ranks": "4"}
    code = apply_code(r.model_copy(update={"environment": r.environment.model_copy(update={"settings": settings})}))
    assert "# on each of 4 ranks" in code
    assert code.index("init_process_group()") < code.index("fit.prepare(") < code.index("step.close()")
    ast.parse(code)


def test_a_plan_for_inference_has_no_optimizer() -> None:
    r = answer()
    environment = r.environment.model_copy(update={"settings": {"mode": "inference"}})
    code = apply_code(r.model_copy(update={"environment": environment}))
    assert "output = step(batch)" in code
    assert "optimizer" not in code


def test_it_names_the_functions_that_the_plan_file_does_not_hold() -> None:
    r = answer()
    assert "# with the loss_fn or step_fn of tune" in apply_code(r)
    environment = r.environment.model_copy(update={"settings": {**r.environment.settings, "update": "update_fn"}})
    assert "fit.prepare(model, loader, optimizer, update_fn=update_fn)" in apply_code(
        r.model_copy(update={"environment": environment})
    )


def for_a(library: str) -> Answer:
    r = answer()
    environment = r.environment.model_copy(update={"settings": {**r.environment.settings, "trainer": library}})
    return r.model_copy(update={"environment": environment})


def test_a_plan_of_a_trainer_is_applied_to_its_arguments() -> None:
    code = apply_code(for_a("transformers"), "plan.yaml")
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert calls == ["autofit.load('plan.yaml')", "huggingface.apply(fit, args)"]
    lightning = apply_code(for_a("lightning"))
    ast.parse(lightning)
    assert "**lightning.trainer_arguments(fit)" in lightning
    assert "lightning.ApplyPlan(fit)" in lightning
    assert "prepare" not in code + lightning


@pytest.mark.parametrize("library", ["transformers", "lightning", ""])
def test_lines_that_are_too_long_are_broken_and_stay_code(library: str) -> None:
    code = applying_lines(for_a(library), from_file=True)
    assert fitted(code, 100) == code
    narrow = fitted(code, 38)
    assert max(map(len, narrow)) <= 38
    assert ast.dump(ast.parse("\n".join(narrow))) == ast.dump(ast.parse("\n".join(code)))


def test_a_shell_reads_the_words_back() -> None:
    words = ["tune", "train.py:make", "--arg", "name=it's big", "--memory", "20GiB", "-o", "a b.yaml"]
    assert shlex.split(command_line(words)) == ["autofit", *words]


@pytest.mark.parametrize("flag", ["--quiet", "-q", "--qui", "--json", "--force"])
def test_a_command_line_to_repeat_the_search_has_no_flags_on_its_output(flag: str) -> None:
    for words in (["tune", flag, "t.py", "--seed", "3"], ["tune", "t.py", "--seed", "3", flag]):
        assert command_line(words) == "autofit tune t.py --seed 3"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--arg", "api_key=hunter2 is long"], "autofit --arg 'api_key=***'"),
        (["--arg", "cfg={token: hunter2, x: 1}"], "autofit --arg 'cfg=***'"),
        (["--arg", "max_token=512"], "autofit --arg max_token=512"),
        (["--study", "postgresql://me:hunter2@host/db"], "autofit --study 'postgresql://***@host/db'"),
        (
            ["--study=postgresql://me:hunter2@h/db?p=hunter2"],
            "autofit '--study=postgresql://***@h/db?***'",
        ),
    ],
)
def test_secrets_are_hidden(words: list[str], shown: str) -> None:
    assert command_line(words) == shown


def step(model: object, batch: object) -> torch.Tensor:
    raise AssertionError("it is only named")


def test_a_call_has_the_arguments_that_differ_from_their_defaults() -> None:
    values = {
        "model": object(), "loader": [1], "loss_fn": F.cross_entropy, "step_fn": step, "optimizer": lambda p: None,
        "time_budget": "6min", "seed": 0, "strategies": ("batching",), "study": Path("a.db"), "mode": "inference",
        "worst_case": torch.zeros(3), "progress": False, "clock": 3, "max_grad_norm": None,
        "device": torch.device("cpu"),
    }  # fmt: skip
    assert tuning_call(autofit.tune, values) == (
        "autofit.tune(model, loader, loss_fn=cross_entropy, step_fn=step, optimizer=..., time_budget='6min', "
        "strategies=['batching'], worst_case=..., mode='inference', device=..., study='a.db')"
    )


def test_a_call_with_defaults_alone_is_short() -> None:
    assert tuning_call(autofit.tune, {}) == "autofit.tune(model, loader)"
    assert "hunter2" not in tuning_call(autofit.tune, {"study": "postgresql://me:hunter2@host/db"})
