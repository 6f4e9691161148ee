"""A GPT-2 with random weights in a Hugging Face Trainer."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from autofit.fit import Fit
from autofit.integrations.huggingface import PlanCheck, apply, tune_trainer
from autofit.workloads.step import TrainStep
from scripts.bench.trainers.arms import WARM_UP_STEPS, StepEnds, Trained
from scripts.bench.trainers.judging import BlockTimes

WORDS, SAMPLES = 500, 2048


class InHuggingFace(Trained):
    """A GPT-2 on random tokens.

    Args:
        name: of the case.
        width, depth, length: of the model and its texts.
        size: micro batch of the baseline, which accumulates two.
        folder: where the Trainer may write.
    """

    def __init__(self, name: str, *, width: int, depth: int, length: int, size: int, folder: str) -> None:
        rows = torch.randint(WORDS, (SAMPLES, length), generator=torch.Generator().manual_seed(0))
        self.name, self._size, self._folder = name, size, folder
        self._samples = [{"input_ids": row, "labels": row} for row in rows]
        self._config = GPT2Config(vocab_size=WORDS, n_positions=length, n_embd=width, n_layer=depth, n_head=4,
                                  bos_token_id=0, eos_token_id=0)  # fmt: skip
        self._trained = self._model()

    def tune(self, seconds: float) -> Fit:
        limits = {"time_budget": seconds, "study": ":memory:", "progress": False}
        without = ["checkpointing", "compilation"]  # a part of the blocks is switched on by hand; compiling takes long
        return tune_trainer(lambda: self._trainer(self._arguments(1), self._model()), without=without, **limits)

    def prepared(self, fit: Fit) -> TrainStep:
        made = self._trainer(self._arguments(1), self._model())
        loader = made.get_train_dataloader()
        return fit.prepare(made.model, getattr(loader, "base_dataloader", loader), made.create_optimizer())

    def block(self, fit: Fit, steps: int) -> tuple[BlockTimes, str]:
        ends, texts = _Ends(), list[str]()
        check = PlanCheck(fit, warm_up_steps=WARM_UP_STEPS, report=texts.append)
        self._trainer(apply(fit, self._arguments(steps + WARM_UP_STEPS)), self._trained, check, ends).train()
        assert check.reached is not None, "a Trainer that has trained was measured"
        return ends.found.block(steps, check.reached.overhead_s), texts[0]

    def _model(self) -> GPT2LMHeadModel:
        torch.manual_seed(0)
        return GPT2LMHeadModel(self._config)

    def _arguments(self, steps: int) -> TrainingArguments:
        return TrainingArguments(
            output_dir=self._folder, per_device_train_batch_size=self._size, gradient_accumulation_steps=2,
            max_steps=steps, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True,
        )  # fmt: skip

    def _trainer(self, args: TrainingArguments, model: Any, *callbacks: TrainerCallback) -> Trainer:
        made = Trainer(model=model, args=args, train_dataset=self._samples, callbacks=list(callbacks))
        made.remove_callback(PrinterCallback)
        return made


class _Ends(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    def __init__(self) -> None:
        self.found = StepEnds()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.found.note()
