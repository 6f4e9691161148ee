"""Exporter to torchtitan: maps a plan to overrides of its configuration on the command line."""

import shlex
from collections.abc import Mapping, Sequence
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    BF16,
    FULL,
    GATHER,
    HYBRID,
    LAYOUT,
    REPLICATED,
    RESHARD,
    TENSOR,
    Settings,
    checkpointing_fields,
    is_divided,
    shards,
    weighing_of,
)

SUBCOMMANDS_SINCE = "0.3"
"""First version in which a kind of activation checkpointing is chosen by a subcommand, and in which the optimizer does
not step in the backward pass."""

TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""Variable that switches TF32 on for products of matrices; torch reads it. Convolutions use TF32 by default."""
RANKS = "AUTOFIT_RANKS"
"""Variable with the number of ranks, which a plan of an estimate does not know."""
_SUBCOMMAND = "activation_checkpoint:"
_FLOAT32 = {"training.dtype": "float32"}
"""The weights stay in float32."""
_IN_BF16 = {"training.mixed_precision_param": "bfloat16", "training.mixed_precision_reduce": "float32"}
_IGNORED = -100
"""Label that torchtitan ignores and does not count. Its data sets shift the labels."""


def _degrees(replicate: int | str, shard: int | str) -> Settings:
    return {"parallelism.data_parallel_replicate_degree": replicate, "parallelism.data_parallel_shard_degree": shard}


def _resharding(policy: str) -> Settings:
    return {"parallelism.fsdp_reshard_after_forward": policy}


class Torchtitan(Exporter):
    """A fragment of a bash script that sets the array AUTOFIT_OVERRIDES, which is passed to torchtitan's training.

    For example: `source autofit_torchtitan.sh && ./run_train.sh "${AUTOFIT_OVERRIDES[@]}"`. In version 0.3 nothing may
    follow the overrides, because the subcommand at their end would take it.

    torchtitan checkpoints every transformer block or none, and compiles each block.
    """

    name: ClassVar[str] = "torchtitan"
    filename: ClassVar[str] = "autofit_torchtitan.sh"
    package: ClassVar[str] = "torchtitan"
    oldest: ClassVar[str] = "0.2.2"  # the first version that divides the summed loss of a step by its labels
    newest: ClassVar[str] = "0.3"
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {**_FLOAT32, "training.mixed_precision_param": "float32"},
            "tf32": {**_FLOAT32, TF32: "1", "training.mixed_precision_param": "float32"},
            "bf16": {**_FLOAT32, "training.mixed_precision_param": "bfloat16"},
        },
        "compile": {
            "off": {"compile.enable": False},
            "blocks": {"compile.enable": True, "compile.components": "model"},
        },
        "optimizer_implementation": {
            "default": {},
            **{name: {"optimizer.implementation": name} for name in ("for-loop", "foreach", "fused")},
        },
        "recomputed_operators": {"all": {}},
        LAYOUT: {
            REPLICATED: _degrees(RANKS, 1),
            FULL: _degrees(1, RANKS),
            # All ranks compute each micro batch together, and a step has as many more of them.
            TENSOR: {**_degrees(1, 1), "parallelism.tensor_parallel_degree": RANKS},
        },
        # By default, only the last layers stay gathered, as those outside blocks do in a plan.
        RESHARD: {True: _resharding("default"), False: _resharding("never")},
        GATHER: {BF16: {**_FLOAT32, **_IN_BF16}},
    }
    divides_otherwise: ClassVar[Mapping[KnobValue, str]] = {
        REPLICATED: "torchtitan 0.2 averages gradients in buckets of 100 MB, and 0.3 has fully_shard with one shard",
        TENSOR: "torchtitan divides its own models, and the sequences between their layers too",
    }
    casts_otherwise: ClassVar[Mapping[KnobValue, str]] = {
        **dict.fromkeys((FULL, HYBRID), "torchtitan gathers weights in 16 bits, and computes in them without autocast"),
        BF16: "torchtitan computes in 16 bits without autocast",
    }
    clipping_key: ClassVar[str] = "training.max_norm"  # its default is the norm 1.0

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the overrides for each knob."""
        values = answer.plan.values
        size, steps, batch = values.get(MICRO_BATCH_SIZE), values.get(ACCUMULATION_STEPS, 1), dict[str, Settings]()
        if type(size) is int and type(steps) is int and size > 0 and steps > 0:
            # torchtitan derives the number of passes from the two sizes.
            of_all = f"{size * steps} * {RANKS}" if is_divided(answer) else size * steps
            sizes: Settings = {"training.local_batch_size": size, "training.global_batch_size": of_all}
            batch = {MICRO_BATCH_SIZE: sizes, ACCUMULATION_STEPS: {}}
        # By default torchtitan checkpoints a part of the operators.
        checkpointing = checkpointing_fields(answer, _kind("none", version), _kind("full", version))
        found = {**batch, **super().fields(answer, version), **checkpointing}
        if (grid := shards(answer)) and grid[0] > 1:
            found[LAYOUT] = _degrees(*grid)
        early, newer = values.get("optimizer_in_backward"), version >= SUBCOMMANDS_SINCE
        if early is False or (early is True and not newer):
            found["optimizer_in_backward"] = {} if newer else {"optimizer.early_step_in_backward": early}
        if gathered := found.pop(GATHER, None):
            found[GATHER] = gathered  # last: the format of gathered weights is that of all that computes
        return {knob: settings for knob, settings in found.items() if knob in values}

    def caveats(self, answer: Answer) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan: it weights each mean loss by its number of labels."""
        weighing, labels = weighing_of(answer), f"labels that are not {_IGNORED}"
        found = super().caveats(answer)
        if weighing is None or weighing.ignored == _IGNORED:
            return found
        if weighing.summed:
            return (
                *found,
                f"the loss is a sum over samples, and torchtitan trains on a mean over the {labels}: the gradient is "
                "smaller by their number",
            )
        return (
            *found,
            f"the loss is a mean over {weighing}, and the plan weights micro batches by it; torchtitan weights those "
            f"of a step by their {labels}. If the two differ, the gradient differs from the plan's",
        )

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the text of the fragment."""
        variables = [f"export {name}={value}\n" for name, value in settings.items() if name == TF32]
        options = {name: value for name, value in settings.items() if name != TF32}
        subcommand = {name: options.pop(name) for name in list(options) if name.startswith(_SUBCOMMAND)}
        one = "The batch is that of one device. With N data-parallel devices, multiply training.global_batch_size by N."
        several = f'Set {RANKS} to the number of ranks.\n: "${{{RANKS}:?is the number of ranks}}"'
        if (ranks := answer.environment.ranks) > 1:
            several = f'{RANKS} is the number of ranks.\n: "${{{RANKS}:={ranks}}}"'
        return "".join(
            [
                f"{self.comment}{several if is_divided(answer) else one}\n",
                f"{self.comment}Use: source {self.filename}, then pass ",
                '"${AUTOFIT_OVERRIDES[@]}" to torchtitan after all other arguments.\n',
                *variables,
                "AUTOFIT_OVERRIDES=(\n",
                *(f"  {_override(*option)}\n" for option in (*options.items(), *subcommand.items())),
                ")\n",
            ]
        )


def _override(name: str, value: object) -> str:
    """Returns an override for bash. A subcommand is one word; so is a switch, whose name says whether it is on."""
    if name.startswith(_SUBCOMMAND):
        return name
    if type(value) is bool:
        section, _, field = name.rpartition(".")
        return f"--{section}.{field if value else f'no_{field}'}"
    number = f'"$(({value}))"' if str(value).endswith(RANKS) else shlex.quote(str(value))
    return f"--{name} {number}"


def _kind(kind: str, version: TargetVersion) -> Settings:
    if version >= SUBCOMMANDS_SINCE:
        return {f"{_SUBCOMMAND}{kind}": True}
    return {"activation_checkpoint.mode": kind}
