"""A Hugging Face Trainer: tuned where it is made, and trained under the plan. Nothing is downloaded.

    pip install '.[huggingface]'
    python examples/huggingface_trainer.py

Points of interest:
  * `make_trainer` is the code that the script had before. Three lines tune it and apply the plan.
  * The plan is in `TrainingArguments` before the Trainer is built: a Trainer that exists keeps its batch size.
  * `PlanCheck` refuses a training whose batch or precision is not the plan's.
"""

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from autofit.integrations.huggingface import PlanCheck, apply, tune_trainer

LENGTH, WORDS = 32, 500


def make_args() -> TrainingArguments:
    """Returns the arguments with a conservative baseline: micro batch 2, 8 accumulation steps."""
    return TrainingArguments(
        output_dir=".autofit/trainer",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        max_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,  # to train on an accelerator, leave this out
    )


def make_trainer(args: TrainingArguments, *callbacks: PlanCheck) -> Trainer:
    """Returns a Trainer for a small GPT-2 on random tokens."""
    torch.manual_seed(0)
    rows = torch.randint(0, WORDS, (640, LENGTH), generator=torch.Generator().manual_seed(0))
    samples: list[dict[str, Tensor]] = [{"input_ids": row, "labels": row} for row in rows]
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=64, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=samples, callbacks=list(callbacks))


def main() -> None:
    """Tunes what the Trainer trains, and trains under the plan."""
    args = make_args()
    # Checkpointing is left out: this model fits without, and a part of its blocks is switched on in the model only.
    fit = tune_trainer(lambda: make_trainer(args), time_budget="25s", without=["checkpointing"])
    print(fit)
    trainer = make_trainer(apply(fit, args), PlanCheck(fit))
    trainer.train()


if __name__ == "__main__":
    main()
