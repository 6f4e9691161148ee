"""A plan in a loop with Lightning's `Fabric`: its arguments, and what to write in the loop."""

import warnings
from typing import Any

from autofit.integrations.given_plan import GivenPlan
from autofit.integrations.plan_settings import PlanSettings

_IN_THE_LOOP = {
    "gradient_clip_val": "fabric.clip_gradients(model, optimizer, max_norm={}) before optimizer.step()",
    "benchmark": "torch.backends.cudnn.benchmark = {} before the first step",
}
"""What to write in place of an argument of the `Trainer` that `Fabric` does not have."""
_OF_THE_TRAINER = {*_IN_THE_LOOP, "accumulate_grad_batches", "gradient_clip_algorithm"}


def fabric_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns the precision of a plan, for `Fabric(**fabric_arguments(plan))`.

    The loop is the user's: give `loader_arguments(plan)` to the DataLoader, and step once in
    `plan.accumulation_steps` micro batches. Warns of what the plan has beyond these.

    Raises:
        PlanFileError: the file is not a plan file.
    """
    found = PlanSettings.of(plan, "lightning")
    found.warn()
    for key, line in _IN_THE_LOOP.items():
        if value := found.values.get(key):
            warnings.warn(f"Fabric has no argument {key}. Write {line.format(value)}.", stacklevel=2)
    return {key: value for key, value in found.values.items() if key not in _OF_THE_TRAINER}
