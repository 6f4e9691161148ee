"""PlanCheck: a callback that refuses a training whose batch or precision is not its plan's."""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from autofit.core.answer import Answer
from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.integrations.given_plan import GivenPlan, answer_of

MIXED = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's name of each precision of a plan."""


class PlanCheck(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Refuses a training that contradicts its plan, when it begins."""

    def __init__(self, plan: GivenPlan) -> None:
        """Checks against `plan`: a plan file, or what `autofit.tune` or `autofit.load` returned."""
        self.answer: Answer = answer_of(plan)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Compares the batch and the precision in effect with those of the plan.

        Raises:
            UsageError: they differ.
        """
        plan, devices = self.answer.plan, args.world_size * max(args.n_gpu, 1)
        found = _found(args, others.get("train_dataloader"))
        for name, planned in _planned(plan, devices).items():
            if name in found and found[name] != planned:
                raise UsageError(
                    f"found {name}={found[name]} in this training, and the plan has {planned}. Build the Trainer with "
                    "autofit.integrations.huggingface.apply(plan, args), or remove PlanCheck."
                )


def _planned(plan: Plan, devices: int) -> Mapping[str, Any]:
    """Returns what the plan says of a training on this number of devices."""
    planned: dict[str, Any] = {
        MICRO_BATCH_SIZE: plan.micro_batch_size,
        ACCUMULATION_STEPS: max(plan.accumulation_steps // devices, 1),
    }
    precision = plan.values.get("precision")
    return planned if precision is None else {**planned, "mixed_precision": MIXED.get(str(precision), precision)}


def _found(args: Any, loader: Any) -> dict[str, Any]:
    """Returns the batch of the loader, and the precision that Accelerate applies."""
    from accelerate.state import AcceleratorState  # noqa: PLC0415  # a Trainer has imported it

    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or args.train_batch_size
    return {
        MICRO_BATCH_SIZE: size // max(args.n_gpu, 1),
        ACCUMULATION_STEPS: args.gradient_accumulation_steps,
        "mixed_precision": AcceleratorState().mixed_precision,
    }
