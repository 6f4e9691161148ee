"""The code that applies a recommended plan, as a report and a summary show it."""

from collections.abc import Sequence

from autofit.core.environment import TRAINER, UPDATE
from autofit.core.recommendation import Recommendation

DEFAULT_FILE = "autofit.yaml"
"""Plan file that the code names if the plan was not saved yet."""


def apply_code(recommendation: Recommendation, plan_file: str = "") -> str:
    """Returns Python code that loads a plan and applies it.

    Args:
        recommendation: the plan.
        plan_file: where it is saved; "" if it was not saved yet.
    """
    first = (
        ""
        if plan_file
        else f"# Save the plan first: fit.save({DEFAULT_FILE!r}), or `autofit tune ... -o {DEFAULT_FILE}`.\n"
    )
    lines = [f"fit = autofit.load({plan_file or DEFAULT_FILE!r})", *applying_lines(recommendation, from_file=True)]
    return f"{first}import autofit\n\n" + "".join(f"{line}\n" for line in lines)


def applying_lines(r: Recommendation, *, from_file: bool) -> list[str]:
    """Returns the code that applies a plan named `fit`: to the trainer that was tuned, or else in a loop.

    Args:
        r: the plan.
        from_file: whether `fit` comes from a plan file, which has no functions.
    """
    settings = r.environment.settings
    if settings.get(TRAINER) == "transformers":
        return [
            "from autofit.integrations import huggingface",
            "args = huggingface.apply(fit, args)",
            "# before Trainer(model, args, ...)",
        ]
    if settings.get(TRAINER) == "lightning":
        return [
            "from autofit.integrations import lightning",
            "trainer = Trainer(",
            "    **lightning.trainer_arguments(fit),",
            "    callbacks=[lightning.ApplyPlan(fit)],",
            ")",
        ]
    inference = settings.get("mode") == "inference"
    given, result = ("model, loader", "output") if inference else ("model, loader, optimizer", "loss")
    note = [f"# with the {settings.get(UPDATE, 'loss_fn or step_fn')} of tune"] if from_file and not inference else []
    return [*note, f"step = fit.prepare({given})", "for batch in step.loader:", f"    {result} = step(batch)"]


def fitted(code: Sequence[str], width: int) -> list[str]:
    """Returns code with its long lines broken behind their last bracket; an import gets brackets for that."""
    lines = list[str]()
    for line in code:
        whole = line if "(" in line or " import " not in line else line.replace(" import ", " import (") + ")"
        head, bracket, rest = whole.rpartition("(")
        indent = len(line) - len(line.lstrip()) + 4
        lines += [line] if len(line) <= width or not bracket else [head + bracket, " " * indent + rest]
    return lines
