"""PlanCheck: a callback that compares a training with what its plan says and promised."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import TrainerCallback

from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.recommendation import Recommendation
from autofit.core.units import format_bytes
from autofit.integrations.given_plan import GivenPlan, recommendation_of
from autofit.integrations.reached import WARM_UP_STEPS, ReachedThroughput, overhead_text

MIXED = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's name of each precision of a plan."""


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """What a training reached, and what its plan promised.

    Attributes:
        promised_per_s: samples per second that the plan promised.
        samples_per_s: samples per second of this training, evaluations and checkpoints left out.
        inside_per_s: samples per second inside the optimizer steps, as the plan was measured.
        promised_bytes: allocated peak that the plan promised; None if it is not compared.
        peak_bytes: allocated peak of this training; None on a device without a reading.
        overhead_s: seconds of each step that the Trainer and its loader cost: outside forward pass, backward pass and
            update. None on an accelerator, where work is queued, or if the model is compiled.
    """

    promised_per_s: float
    samples_per_s: float
    inside_per_s: float
    promised_bytes: int | None = None
    peak_bytes: int | None = None
    overhead_s: float | None = None

    def __str__(self) -> str:
        between = 1 - self.samples_per_s / self.inside_per_s
        text = (
            f"the plan promised {self.promised_per_s:.4g} samples/s, this training reaches {self.samples_per_s:.4g} "
            f"({self.samples_per_s / self.promised_per_s:.0%}): {self.inside_per_s:.4g} inside its steps, and "
            f"{between:.0%} of the time between them (batches, logging, callbacks){overhead_text(self.overhead_s)}"
        )
        if self.peak_bytes is None or self.promised_bytes is None:
            return text
        peaks = format_bytes(self.promised_bytes), format_bytes(self.peak_bytes)
        return f"{text}; the plan promised a peak of {peaks[0]}, this training allocates {peaks[1]}"


class PlanCheck(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Refuses a training that contradicts its plan, and reports at its end what it reached.

    The first steps are warm-up and are not timed. Speed and memory are those of one device.

    Attributes:
        reached: what the last training reached; None before its end, or if it had too few steps.
    """

    def __init__(
        self, plan: GivenPlan, *, warm_up_steps: int = WARM_UP_STEPS, report: Callable[[str], object] = print
    ) -> None:
        """Checks against `plan`: a plan file, or what `autofit.tune` or `autofit.load` returned.

        Args:
            plan: the plan that was applied to the arguments.
            warm_up_steps: number of first steps that are not timed, at least 1.
            report: called once with the comparison, at the end of each training.
        """
        self.recommendation: Recommendation = recommendation_of(plan)
        self.warm_up_steps = max(warm_up_steps, 1)
        self.report = report
        self.reached: PlanComparison | None = None
        self._timed = self._timing(self.recommendation.plan.global_batch_size)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Compares the batch and the precision in effect with those of the plan.

        Raises:
            UsageError: they differ.
        """
        plan, devices = self.recommendation.plan, args.world_size * max(args.n_gpu, 1)
        found = _found(args, others.get("train_dataloader"))
        for name, planned in _planned(plan, devices).items():
            if name in found and found[name] != planned:
                raise UsageError(
                    f"found {name}={found[name]} in this training, and the plan has {planned}. Build the Trainer with "
                    "autofit.integrations.huggingface.apply(plan, args), or remove PlanCheck."
                )
        self._timed.work.stop()  # that of a training that failed
        self.reached = None
        self._timed = self._timing(found[MICRO_BATCH_SIZE] * found[ACCUMULATION_STEPS])
        if args.device.type == "cpu" and not args.torch_compile:
            optimizer = others["optimizer"]
            self._timed.work.follow_passes(others["model"])
            self._timed.work.follow_updates(getattr(optimizer, "optimizer", optimizer), began=bool(args.max_grad_norm))
        if _counts_memory(args):
            torch.accelerator.reset_peak_memory_stats()

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Notes the time before a step."""
        self._timed.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Notes the time after a step."""
        self._timed.end()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leaves out the time since the last step."""
        self._timed.pause()

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Leaves out the time since the last step."""
        self._timed.pause()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Reports what the training reached."""
        timed = self._timed
        timed.work.stop()
        if timed.samples_per_s is None:
            self.report(
                f"the plan's speed was not checked: found {timed.parts} optimizer steps, and the first "
                f"{self.warm_up_steps} are warm-up"
            )
            return
        memory = self.recommendation.proof.memory.allocated_bytes if _counts_memory(args) else None
        self.reached = PlanComparison(
            promised_per_s=timed.promised_per_s,
            samples_per_s=timed.samples_per_s,
            inside_per_s=timed.samples_per_step / timed.inside_s,
            promised_bytes=memory,
            peak_bytes=None if memory is None else torch.accelerator.max_memory_allocated(),
            overhead_s=timed.overhead_s,
        )
        self.report(str(self.reached))

    def _timing(self, samples_per_step: int) -> ReachedThroughput:
        return ReachedThroughput(self.recommendation, samples_per_step, warm_up_steps=self.warm_up_steps)


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


def _counts_memory(args: Any) -> bool:
    return bool(args.device.type == "cuda")
