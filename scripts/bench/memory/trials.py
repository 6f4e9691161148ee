"""Architectures on which other people found estimation errors: windows, volumes and experts.

They use operators that the architectures in `architectures.py` and `held_back.py` do not use: rolls and relative
positions, 3-D convolutions, and top-k routing with gathers and scatters, with and without a capacity.
"""

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MixtralConfig, MixtralForCausalLM, SwinConfig, SwinForImageClassification

from scripts.bench.memory.architecture import CLASSES, WORDS, Architecture, c, labelled, of_words, words
from scripts.bench.memory.held_back import pixels


def swin() -> nn.Module:
    config = SwinConfig(
        image_size=224, embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7, num_labels=CLASSES,
        drop_path_rate=0.1,
    )  # fmt: skip
    model: nn.Module = SwinForImageClassification(config)
    return model


def volumes(size: int, side: int) -> tuple[Tensor, Tensor]:
    """Returns volumes with one channel, and a class for each voxel."""
    return torch.randn(size, 1, side, side, side), torch.randint(3, (size, side, side, side))


def twice(inputs: int, outputs: int, norm: type[Any]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv3d(width, outputs, 3, padding=1), norm(outputs), nn.LeakyReLU(0.01, inplace=True)]
    return nn.Sequential(*layers)


class VolumeUNet(nn.Module):
    """A 3-D U-Net with strided and transposed convolutions."""

    def __init__(self, width: int = 16, depth: int = 3, norm: type[Any] = nn.InstanceNorm3d) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.first = twice(1, width, norm)
        self.downs = nn.ModuleList(nn.Conv3d(low, high, 2, stride=2) for low, high in pairs)
        self.lower = nn.ModuleList(twice(high, high, norm) for _, high in pairs)
        self.ups = nn.ModuleList(nn.ConvTranspose3d(high, low, 2, stride=2) for low, high in pairs)
        self.upper = nn.ModuleList(twice(2 * low, low, norm) for low, _ in pairs)
        self.out = nn.Conv3d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        passed = []
        for down, block in zip(self.downs, self.lower, strict=True):
            passed.append(x)
            x = block(down(x))
        for up, block, other in zip(reversed(self.ups), reversed(self.upper), reversed(passed), strict=True):
            x = block(torch.cat([up(x), other], 1))
        out: Tensor = self.out(x)
        return out


class Experts(nn.Module):
    """A layer of experts. Each token uses its best expert; tokens beyond an expert's capacity skip the layer."""

    def __init__(self, width: int, experts: int, factor: float) -> None:
        super().__init__()
        self.router, self.factor, self.experts = nn.Linear(width, experts), factor, experts
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        capacity = int(self.factor * len(tokens) / self.experts)
        chance, expert = self.router(tokens).softmax(-1).max(-1)
        chosen = F.one_hot(expert, self.experts)
        place = (chosen.cumsum(0) * chosen).sum(-1) - 1
        slot = torch.where(place < capacity, expert * capacity + place, self.experts * capacity)
        held = tokens.new_zeros(self.experts * capacity + 1, tokens.shape[-1]).index_copy(0, slot, tokens)
        held = held[:-1].view(self.experts, capacity, -1)
        held = torch.bmm(F.gelu(torch.bmm(held, self.up.to(held.dtype))), self.down.to(held.dtype))
        held = torch.cat([held.reshape(self.experts * capacity, -1), held.new_zeros(1, held.shape[-1])])
        out: Tensor = x + (held[slot] * chance.unsqueeze(-1)).view_as(x)
        return out


class SwitchLayer(nn.Module):
    """A transformer layer with experts in place of the feed-forward network."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts_norm, self.experts = nn.LayerNorm(width), Experts(width, experts, 1.25)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        out: Tensor = self.experts(self.experts_norm(x))
        return out


class Switch(nn.Module):
    """A language model of routed experts."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(2048, width)
        self.layers = nn.ModuleList(SwitchLayer(width, 4, 8) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


def mixtral() -> nn.Module:
    config = MixtralConfig(
        vocab_size=WORDS, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=1024,
        use_cache=False, output_router_logits=False,
    )  # fmt: skip
    model: nn.Module = MixtralForCausalLM(config)
    return model


TRIALS = {
    "swin": Architecture("swin", "shifted windows of transformers", swin, pixels, (
        c(224, 12),
        c(224, 16, precision="bf16", optimizer_implementation="fused"),
        c(224, 4, precision="fp16", checkpointed_blocks="all"),
        c(224, 8, "sgd", precision="bf16", checkpointed_blocks="half", accumulation_steps=2),
    )),
    "volumes": Architecture("volumes", "3-D U-Net", VolumeUNet, volumes, (
        c(64, 16),
        c(64, 24, precision="bf16"),
        c(48, 8, precision="fp16", optimizer_implementation="foreach"),
        c(64, 16, "sgd", precision="bf16", accumulation_steps=2),
    ), F.cross_entropy),
    "switch": Architecture("switch", "routed experts with capacity", Switch, words, (
        c(256, 12),
        c(512, 24, precision="bf16", optimizer_implementation="fused"),
        c(256, 12, precision="fp16", optimizer_implementation="foreach"),
        c(512, 24, "sgd", precision="bf16", accumulation_steps=2),
    ), of_words),
    "mixtral": Architecture("mixtral", "routed experts of transformers", mixtral, labelled, (
        c(256, 12),
        c(512, 24, precision="bf16", optimizer_implementation="fused"),
        c(256, 12, precision="fp16", checkpointed_blocks="all"),
    )),
}  # fmt: skip
"""Architectures by name."""
