"""Trains a small GPT-2 with the Trainer of transformers."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
rows = torch.randint(0, 100, (128, 16))
args = TrainingArguments(
    output_dir="trained",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_steps=4,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
config = GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
data = [{"input_ids": row, "labels": row} for row in rows]
trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=data)
trainer.train()
size, steps = trainer.get_train_dataloader().total_batch_size, trainer.args.gradient_accumulation_steps
print(f"trained {trainer.state.global_step} steps of {size} x {steps}")
