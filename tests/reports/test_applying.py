"""The code that applies a plan: complete, and quoted so that a path cannot break it."""

import ast

from autofit.core.recommendation import Recommendation
from autofit.reports.applying import apply_code
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
    assert "outputs = step(batch)" in code
    assert "optimizer" not in code


def test_it_names_the_functions_that_the_plan_file_does_not_hold() -> None:
    r = recommendation()
    assert "# with the loss_fn or step_fn that you gave to tune" in apply_code(r)
    environment = r.environment.model_copy(update={"settings": {**r.environment.settings, "update": "update_fn"}})
    assert "# with the update_fn that you gave to tune" in apply_code(r.model_copy(update={"environment": environment}))
