"""Exporter to Lightning: an overlay for LightningCLI, `fit --config base.yaml --config autofit_lightning.yaml`."""

from collections.abc import Mapping
from typing import ClassVar

import yaml

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import Settings, code_lines, compile_line, loader_comment, worker_arguments


class Lightning(Exporter):
    """An overlay that holds precision, accumulation and clipping: arguments of the `Trainer`.

    The batch belongs to a data module or module, under a name that only the user knows.
    """

    name: ClassVar[str] = "lightning"
    filename: ClassVar[str] = "autofit_lightning.yaml"
    package: ClassVar[str] = "lightning"
    oldest: ClassVar[str] = "2.0"
    newest: ClassVar[str] = "2.6"
    counts: ClassVar[Mapping[str, str]] = {ACCUMULATION_STEPS: "accumulate_grad_batches"}
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {"precision": "32-true"},
            "bf16": {"precision": "bf16-mixed"},
            "fp16": {"precision": "16-mixed"},
        },
        "cudnn_benchmark": {False: {"benchmark": False}, True: {"benchmark": True}},
        "compile": {"off": {}},
    }
    clipping_key: ClassVar[str] = "gradient_clip_val"
    weighs_alike: ClassVar[str] = "Lightning"

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns the arguments of the data module, and lines of plain PyTorch."""
        lines = code_lines(answer)
        if MICRO_BATCH_SIZE in lines:
            arguments = (f"batch_size={answer.plan.micro_batch_size}", *worker_arguments(answer))
            lines[MICRO_BATCH_SIZE] += (
                f" in train_dataloader, or under data: the names of your data module for {', '.join(arguments)}"
            )
        compiled = compile_line(answer, "in configure_model", "self.model")
        return lines if compiled is None else {**lines, "compile": compiled}

    def clipping(self, answer: Answer) -> Settings:
        """Returns the arguments of clipping. The algorithm is named, because the user's file may clip by value."""
        norm = super().clipping(answer)
        return {**norm, "gradient_clip_algorithm": "norm"} if norm else {}

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the overlay's text. A plan without accumulation also replaces that of the user's file."""
        text = yaml.safe_dump({"trainer": {"accumulate_grad_batches": 1, **settings}}, sort_keys=True)
        return loader_comment(answer) + text
