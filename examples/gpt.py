"""A GPT-like language model on texts of varying length, with a fixed global batch and limited memory.

    python examples/gpt.py                                   # tune, then train, in this process
    autofit tune examples/gpt.py:make_workload --memory 72MiB --time 2min       # the same from the command line

Points of interest:
  * Each optimizer step has 32 texts, before and after tuning. Only the micro batch changes: every plan has micro batch
    x accumulation steps = 32.
  * The largest micro batch need not be the fastest, because short texts are padded to the longest of their batch.
  * The peak is measured on the longest texts in the data set, not on a typical batch, and compared with MEMORY.
  * The loss of a text is the mean over its own tokens. So the mean over micro batches equals the mean over the step,
    and accumulation gives the same gradient. With a mean over all tokens it would not. autofit would then weight micro
    batches, or leave accumulation out, and say so.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import autofit

MEMORY = "72MiB"  # of live tensors: weights, gradients, optimizer state and activations
VOCABULARY, LONGEST, PADDING = 256, 40, -100


class Texts(Dataset[Tensor]):
    """Texts in which each token is the previous one plus 7, so they are easy to learn. Most are short, a few long."""

    def __init__(self, count: int = 2000) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = (8 + (LONGEST - 8) * torch.rand(count, generator=generator) ** 3).long()
        self.starts = torch.randint(VOCABULARY, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return (self.starts[index] + 7 * torch.arange(int(self.lengths[index]))) % VOCABULARY


def collate(texts: list[Tensor]) -> dict[str, Tensor]:
    """Pads texts to the length of the longest."""
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    ids = pad_sequence(texts, batch_first=True)
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, PADDING), "attention_mask": mask}


class Block(nn.Module):
    """Causal self-attention and an MLP. Padding is on the right, so no token of a text attends to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the hidden states after this block, [texts, tokens, width]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(attended))
        out: Tensor = x + self.dropout(self.mlp(self.norm2(x)))
        return out


class Output(NamedTuple):
    """Output of the model. autofit finds the loss by its name."""

    loss: Tensor
    logits: Tensor


class GPT(nn.Module):
    """A stack of blocks between an embedding and a projection onto the vocabulary."""

    def __init__(self, width: int = 256, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> Output:
        """Returns the mean over texts of each text's mean loss for the next token, and the logits."""
        x = self.tokens(input_ids) + self.positions.weight[: input_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        each = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none")
        mask = attention_mask[:, 1:]
        return Output(((each.view_as(mask) * mask).sum(1) / mask.sum(1)).mean(), logits)


def make_workload() -> autofit.Workload:
    """Returns the workload with a conservative baseline: micro batch 4, 8 accumulation steps."""
    torch.manual_seed(0)
    model = GPT()
    loader = DataLoader(Texts(), batch_size=4, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return autofit.Workload(model, loader, optimizer=optimizer, global_batch_size=32, max_grad_norm=1.0)


def main() -> None:
    """Tunes, prints the result, and trains with the plan."""
    w = make_workload()
    fit = autofit.tune(
        w.model,
        w.loader,
        optimizer=w.optimizer,
        global_batch_size=w.global_batch_size,
        max_grad_norm=w.max_grad_norm,
        memory_budget=MEMORY,
        time_budget="30s",
        device="cpu",  # to tune for an accelerator, omit this and move the model there first
    )
    print(fit)
    step = fit.prepare(w.model, w.loader, w.optimizer)
    for number, batch in zip(range(20), step.loader, strict=False):
        loss = step(batch)
        print(f"step {number + 1}: loss {loss:.3f}")
    step.close()


if __name__ == "__main__":
    main()
