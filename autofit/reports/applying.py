"""The code that applies a recommended plan, as a report shows it."""

from autofit.core.environment import UPDATE
from autofit.core.recommendation import Recommendation

DEFAULT_FILE = "autofit.yaml"
"""Plan file that the code names if the plan was not saved yet."""


def functions_of(recommendation: Recommendation) -> str:
    """Returns the names of the functions that a plan file does not hold: the user's whole step, or a loss."""
    return recommendation.environment.settings.get(UPDATE, "loss_fn or step_fn")


def apply_code(recommendation: Recommendation, plan_file: str = "") -> str:
    """Returns Python code that loads a plan and applies it.

    Args:
        recommendation: the plan.
        plan_file: where it is saved; "" if it was not saved yet.
    """
    inference = recommendation.environment.settings.get("mode") == "inference"
    step = "outputs = step(batch)" if inference else "loss = step(batch)"
    arguments = "model, loader" if inference else "model, loader, optimizer"
    first = (
        ""
        if plan_file
        else f"# Save the plan first: fit.save({DEFAULT_FILE!r}), or `autofit tune ... -o {DEFAULT_FILE}`.\n"
    )
    return (
        f"{first}import autofit\n"
        "\n"
        f"fit = autofit.load({plan_file or DEFAULT_FILE!r})\n"
        f"step = fit.prepare({arguments})  # with the {functions_of(recommendation)} that you gave to tune\n"
        "for batch in step.loader:\n"
        f"    {step}\n"
    )
