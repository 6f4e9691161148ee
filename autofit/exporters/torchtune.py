"""Exporter to torchtune: maps a plan to keys of a recipe's configuration."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.recommendation import Recommendation
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.plan_facts import (
    checkpointing_fields,
    checkpoints_every_block,
    clipping_fields,
    counted,
    label_count_caveat,
    max_grad_norm,
    optimizer_name,
)
from autofit.exporters.target_version import TargetVersion
from autofit.strict_yaml import dump

_TABLES: Mapping[str, Mapping[KnobValue, Settings]] = {
    "precision": {"fp32": {"dtype": "fp32"}},
    "compile": {"off": {"compile": False}, "blocks": {"compile": True}},
    "optimizer_in_backward": {False: {"optimizer_in_bwd": False}, True: {"optimizer_in_bwd": True}},
    "optimizer_states": {"default": {}},
    "recomputed_operators": {"all": {}},
}
"""Settings by knob and value that depend on nothing else. `dtype: bf16` would store weights, gradients and the states
of the optimizer in bfloat16, which neither autocast nor weights with stochastic rounding do."""
_FLAGS: Mapping[KnobValue, Settings] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}
_OPTIMIZERS = ("Adagrad", "Adam", "AdamW", "SGD")
"""Optimizers of torch that have both flags. The optimizer is named, because many recipes have one of a library."""
_TF32 = "dtype: fp32, and run the recipe with the environment variable TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
_UNCLIPPED = (
    "clip_grad_norm is read by the recipes for fine-tuning; those for PPO, DPO with LoRA, knowledge distillation on "
    "several devices, and QAT before 0.5 ignore it"
)
"""Read from `recipes/` of the wheels 0.4.0, 0.5.0 and 0.6.1."""
_LIBRARIES: Mapping[KnobValue, str] = {
    "torchao-8bit": "optimizer: _component_: torchao.optim.AdamW8bit, without fused and foreach",
    "bitsandbytes-8bit": "optimizer: _component_: bitsandbytes.optim.AdamW8bit, without fused and foreach",
}


class Torchtune(Exporter):
    """Keys to copy into a recipe's configuration. torchtune reads one file.

    The same settings stand in a comment as the overrides that `tune run RECIPE --config CONFIG` takes, so that nothing
    needs to be copied.

    torchtune checkpoints every layer of a model or none, compiles each layer, and offloads activations only beside
    checkpointing.

    Its recipes for fine-tuning multiply each micro batch's mean loss by its labels, and divide the gradient by those of
    the step, over all devices. Those for DPO and PPO divide the loss by the accumulation steps.
    """

    name: ClassVar[str] = "torchtune"
    filename: ClassVar[str] = "autofit_torchtune.yaml"
    package: ClassVar[str] = "torchtune"
    oldest: ClassVar[str] = "0.4"
    newest: ClassVar[str] = "0.6"

    def fields(self, plan: Plan, recommendation: Recommendation, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys for each knob."""
        known: dict[str, Callable[[KnobValue], Settings | None]] = {
            MICRO_BATCH_SIZE: counted("batch_size"),
            ACCUMULATION_STEPS: counted("gradient_accumulation_steps"),
            **{knob: table.get for knob, table in _TABLES.items()},
        }
        found = {knob: known[knob](value) for knob, value in plan.values.items() if knob in known}
        found["optimizer_implementation"] = _implementation(plan, recommendation)
        found |= _checkpointing(recommendation)
        return {knob: settings for knob, settings in found.items() if settings is not None and knob in plan.values}

    def by_hand(self, plan: Plan, recommendation: Recommendation, version: TargetVersion) -> Mapping[str, str]:
        """Returns what to do in the recipe's configuration, and where it is run."""
        lines = {"precision": _TF32} if plan.values.get("precision") == "tf32" else {}
        states = _LIBRARIES.get(plan.values.get("optimizer_states", ""))
        if states is not None and optimizer_name(recommendation) == "AdamW":
            lines["optimizer_states"] = states
        return lines

    def caveats(self, recommendation: Recommendation, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan: it counts labels before it shifts them."""
        unclipped = () if max_grad_norm(recommendation) is None else (_UNCLIPPED,)
        return (*label_count_caveat(recommendation, "torchtune", shifts=False), *unclipped)

    def clipping(self, recommendation: Recommendation) -> Settings:
        """Returns the key of clipping, which the recipes for fine-tuning read."""
        return clipping_fields(recommendation, "clip_grad_norm")

    def render(self, settings: Settings, recommendation: Recommendation, version: TargetVersion) -> str:
        """Returns the YAML text, with the same overrides in a comment."""
        lines = [
            "The batch is that of one device. torchtune multiplies it by the number of devices.",
            f"Use: tune run RECIPE --config CONFIG {' '.join(_overrides(settings))}",
        ]
        return "".join(f"{self.comment}{line}\n" for line in lines) + dump(settings)


def _overrides(settings: Settings, prefix: str = "") -> Iterator[str]:
    """Yields the settings as words of the command line, such as "optimizer.fused=True"."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"


def _implementation(plan: Plan, recommendation: Recommendation) -> Settings | None:
    value, name = plan.values.get("optimizer_implementation", ""), optimizer_name(recommendation)
    if value == "default":
        return {}
    if value not in _FLAGS or name not in _OPTIMIZERS:
        return None
    return {"optimizer": {"_component_": f"torch.optim.{name}", **_FLAGS[value]}}


def _checkpointing(recommendation: Recommendation) -> dict[str, Settings]:
    """Returns the keys of checkpointing, that of every layer or of none, and of offload beside it."""
    key, offload = "enable_activation_checkpointing", recommendation.plan.values.get("activation_offload")
    found = checkpointing_fields(recommendation, {key: False}, {key: True})
    if offload is False or (offload is True and checkpoints_every_block(recommendation)):
        found["activation_offload"] = {"enable_activation_offloading": offload}
    return found
