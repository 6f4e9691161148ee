"""A decoder with the interface of `transformers`: it keeps the samples of a row apart by the positions of tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LONGEST = 8, 64


class Layer(nn.Module):
    """Causal attention and a residual connection."""

    is_causal = True

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, attention: str = "sdpa") -> torch.Tensor:
        queries, keys, values = self.mix(self.norm(hidden)).unsqueeze(1).chunk(3, dim=-1)
        if attention == "eager":
            scores = (queries @ keys.mT / WIDTH**0.5).masked_fill(~mask.unsqueeze(1), -torch.inf)
            attended = scores.softmax(-1) @ values
        else:
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask.unsqueeze(1))
        output: torch.Tensor = hidden + self.out(torch.tanh(attended.squeeze(1)))
        return output


class Config:
    """The configuration of a model: its attention is "sdpa" or "eager"."""

    def __init__(self) -> None:
        self._attn_implementation_internal = "sdpa"

    @property
    def _attn_implementation(self) -> str:
        return self._attn_implementation_internal


class Decoder(nn.Module):
    """Turns tokens into hidden states [rows, tokens, WIDTH], in a tuple.

    Attributes:
        leaks: whether tokens attend to earlier samples of their row.
        calls: shape of the tokens in each call.
    """

    def __init__(self, vocabulary: int, leaks: bool = False) -> None:
        super().__init__()
        self.config: Any = Config()
        self.embedding, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.leaks = leaks
        self.calls: list[tuple[int, int]] = []

    @property
    def base_model(self) -> nn.Module:
        return self

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation_internal = name

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = True,
        **others: Any,
    ) -> tuple[torch.Tensor]:
        rows, width = input_ids.shape
        self.calls.append((rows, width))
        positions = torch.arange(width).expand(rows, width) if position_ids is None else position_ids
        mask = torch.ones(width, width, dtype=torch.bool).tril().expand(rows, width, width)
        if attention_mask is not None:
            mask = mask & (attention_mask != 0).unsqueeze(1) | torch.eye(width, dtype=torch.bool)
        elif not self.leaks and not use_cache:
            sample = (positions.diff(prepend=positions[:, :1] - 1) != 1).cumsum(1)
            mask = mask & (sample.unsqueeze(1) == sample.unsqueeze(2))
        hidden = self.embedding(input_ids) + self.positions(positions)
        for layer in self.layers:
            hidden = layer(hidden, mask, self.config._attn_implementation)
        return (hidden,)


class Classifier(nn.Module):
    """Classifies texts by the mean hidden state of their tokens; token 0 is padding."""

    def __init__(self, vocabulary: int, leaks: bool = False) -> None:
        super().__init__()
        self.decoder, self.head = Decoder(vocabulary, leaks), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids != 0).long()
        (hidden,) = self.decoder(input_ids=ids, attention_mask=mask)
        output: torch.Tensor = self.head((hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))
        return output
