"""A plan in an Accelerate script: arguments of the `Accelerator` and of the DataLoader.

    plan = autofit.load("autofit.yaml")
    accelerator = Accelerator(**accelerator_arguments(plan))
    loader = DataLoader(dataset, shuffle=True, **loader_arguments(plan))

Make the `Accelerator` before any other: a second one in the same process keeps the precision of the first. For the same
reason, tune before the training, in a process of its own: `autofit tune train.py:make_workload -o autofit.yaml`.
"""

import os
from typing import Any

from autofit.core.errors import UsageError
from autofit.integrations.plan_settings import GivenPlan, PlanSettings, import_package, loader_arguments

__all__ = ["accelerator_arguments", "loader_arguments"]

STEPS = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Environment variable that wins over the argument of the `Accelerator`. `accelerate launch` sets it for DeepSpeed."""


def accelerator_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns precision, accumulation and compilation of a plan, for `Accelerator(**accelerator_arguments(plan))`.

    Write each micro batch inside `with accelerator.accumulate(model):`. Accelerate divides the loss of each micro batch
    by the accumulation steps, also in the last step of an epoch if that has fewer. Warns of what the plan has beyond
    these arguments and the loader's.

    Raises:
        UsageError: the environment variable ACCELERATE_GRADIENT_ACCUMULATION_STEPS has another value, or accelerate,
            which a plan that compiles needs here, is not installed.
        PlanFileError: the file is not a plan file.
    """
    found = PlanSettings.of(plan, "accelerate")
    steps = found.fit.plan.accumulation_steps
    text = os.environ.get(STEPS)
    if text is not None and text != str(steps):
        raise UsageError(
            f"found {STEPS}={text} in the environment, which wins over the Accelerator's argument; the plan has "
            f"{steps} accumulation steps. Remove the variable, or set it to {steps}."
        )
    found.warn()
    values = dict(found.values)
    compiled: Any = values.pop("dynamo_config", None)
    arguments: dict[str, Any] = {**values, "gradient_accumulation_steps": steps}
    if found.fit.answer.environment.is_host:
        arguments["cpu"] = True
    if compiled:
        plugin = import_package("accelerate.utils", "accelerate").TorchDynamoPlugin
        named = {key.removeprefix("dynamo_"): value for key, value in compiled.items()}
        arguments["dynamo_plugin"] = plugin(**named)
    return arguments
