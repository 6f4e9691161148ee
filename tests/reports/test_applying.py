"""The code that applies a plan: complete, and quoted so that a path cannot break it."""

import ast

import pytest

from autofit.core.recommendation import Recommendation
from autofit.reports.applying import apply_code, applying_lines, fitted
from tests.recorded import recorded_search


def recommendation() -> Recommendation:
    found = recorded_search().recommendation
    assert found is not None
    return found


def test_the_code_loads_the_plan_file_and_trains() -> None:
    code = apply_code(recommendation(), "plans/it's.yaml")
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert """autofit.load("plans/it's.yaml")""" in calls
    assert "fit.prepare(model, loader, optimizer)" in calls
    assert "step(batch)" in calls
    assert not code.startswith("#")


def test_without_a_plan_file_it_says_to_save_first() -> None:
    code = apply_code(recommendation())
    assert code.startswith("# Save the plan first: fit.save('autofit.yaml')")
    ast.parse(code)


def test_a_plan_for_inference_has_no_optimizer() -> None:
    r = recommendation()
    environment = r.environment.model_copy(update={"settings": {"mode": "inference"}})
    code = apply_code(r.model_copy(update={"environment": environment}))
    assert "output = step(batch)" in code
    assert "optimizer" not in code


def test_it_names_the_functions_that_the_plan_file_does_not_hold() -> None:
    r = recommendation()
    assert "# with the loss_fn or step_fn of tune" in apply_code(r)
    environment = r.environment.model_copy(update={"settings": {**r.environment.settings, "update": "update_fn"}})
    assert "# with the update_fn of tune" in apply_code(r.model_copy(update={"environment": environment}))


def for_a(library: str) -> Recommendation:
    r = recommendation()
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
