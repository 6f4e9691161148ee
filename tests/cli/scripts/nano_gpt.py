"""Trains a small GPT as nanoGPT does: batches from `get_batch`, without a loader, and gradient accumulation."""

import hashlib
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

batch_size, block_size, vocabulary, width = 4, 16, 64, 32
accumulation_steps, eval_iters, max_iters = 2, 2, 5
torch.manual_seed(0)
data = torch.randint(vocabulary, (4096,))
context = nullcontext()


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts.tolist()])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts.tolist()])
    return x, y


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    found = torch.stack([model(*get_batch())[1] for _ in range(eval_iters)])
    model.train()
    return float(found.mean())


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
X, Y = get_batch()
for step in range(max_iters):
    if step % 4 == 0:
        print(f"step {step}: loss {estimate_loss():.4f}")
    for _ in range(accumulation_steps):
        with context:
            logits, loss = model(X, Y)
            loss = loss / accumulation_steps
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
weights = b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())
print(hashlib.sha256(weights).hexdigest())
