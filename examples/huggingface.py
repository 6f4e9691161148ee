"""A transformers model, built from a configuration with random weights: nothing is downloaded.

    pip install '.[examples]'
    python examples/huggingface.py

Points of interest:
  * The model computes its own loss from a batch with `labels`, so no loss function is passed.
  * autofit uses the model's own gradient checkpointing, block by block, because the model knows what else must change.
  * Tuning and training can be separate programs: save the plan after tuning, and load it for training.
"""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification

import autofit

MEMORY = "64MiB"
PLAN = ".autofit/huggingface.yaml"  # beside the study
VOCABULARY, LONGEST = 1000, 96

Sample = tuple[Tensor, int]


class Sentences(Dataset[Sample]):
    """Random token ids: from the lower half of the vocabulary for class 0, from the upper half for class 1."""

    def __init__(self, count: int = 1024) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(16, LONGEST + 1, (count,), generator=generator)
        half = VOCABULARY // 2
        self.classes = [index % 2 for index in range(count)]
        self.sentences = [
            torch.randint(1 + half * c, half * (c + 1), (int(n),), generator=generator)
            for n, c in zip(lengths, self.classes, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Sample:
        return self.sentences[index], self.classes[index]


def collate(samples: list[Sample]) -> dict[str, Tensor]:
    """Pads sentences to the length of the longest, as a tokenizer does."""
    ids = pad_sequence([sentence for sentence, _ in samples], batch_first=True)  # id 0 is padding
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([c for _, c in samples])}


def make_workload() -> autofit.Workload:
    """Returns the workload with a conservative baseline: micro batch 8, 2 accumulation steps."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=LONGEST,
        num_labels=2,
    )
    loader = DataLoader(Sentences(), batch_size=8, shuffle=True, collate_fn=collate)
    return autofit.Workload(
        BertForSequenceClassification(config),
        loader,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-4),  # a function that makes one is enough
        global_batch_size=16,
    )


def main() -> None:
    """Tunes, prints the result, saves and loads the plan, and trains with it."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
        memory_budget=MEMORY,
        time_budget="25s",
        device="cpu",  # to tune for an accelerator, omit this and move the model there first
    )
    print(fit)
    fit.save(PLAN)
    loaded = autofit.load(PLAN)
    with loaded.prepare(w.model, w.loader, w.optimizer) as step:
        for number, batch in zip(range(20), step.loader, strict=False):
            loss = step(batch)
            print(f"step {number + 1}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
