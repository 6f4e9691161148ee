"""Architectures of the benchmark of memory estimates that may be used while tracing is developed.

Weights are small and random, activations are large: on a phantom GPU, memory that is never written costs nothing.
"""

from itertools import chain, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from scripts.bench.memory.architecture import (
    CLASSES,
    WORDS,
    Architecture,
    c,
    images,
    labelled,
    of_words,
    pictures,
    rows,
    words,
)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(mixed))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return out


class Gpt(nn.Module):
    def __init__(self, width: int = 512, layers: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, 8, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Encoder(nn.Module):
    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(WORDS, width), nn.Embedding(512, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.1, "gelu", batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)))
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


class Translator(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(512, width)
        self.mixer = nn.Transformer(width, 8, 4, 4, 4 * width, 0.1, batch_first=True)
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        out: Tensor = self.head(self.mixer(x, x, tgt_mask=mask, tgt_is_causal=True))
        return out


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """ResNet-50."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        inputs, stages = 64, []
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            strides = [2 if stage and not number else 1 for number in range(depth)]
            blocks = [Bottleneck(4 * width if n else inputs, width, stride) for n, stride in enumerate(strides)]
            stages.append(nn.Sequential(*blocks))
            inputs = 4 * width
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1).flatten(1))
        return out


class Double(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        layers = ((nn.Conv2d(a, outputs, 3, 1, 1), nn.GroupNorm(8, outputs), nn.SiLU()) for a in (inputs, outputs))
        super().__init__(*chain.from_iterable(layers))


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = Double(4 * width, 8 * width)
        self.up = nn.ModuleList(Double(3 * b, b) for b in reversed(widths))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(down_and_up(x, self.down, self.middle, self.up))
        return out


def down_and_up(x: Tensor, downs: nn.ModuleList, middle: nn.Module, ups: nn.ModuleList) -> Tensor:
    """Passes images through both halves of a U-Net, with a skip connection at each size."""
    kept = []
    for down in downs:
        x = down(x)
        kept.append(x)
        x = F.max_pool2d(x, 2)
    x = middle(x)
    for up in ups:
        x = up(torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), kept.pop()], 1))
    return x


def autoencoder(width: int = 64) -> nn.Module:
    widths = [3, width, 2 * width, 4 * width, 8 * width]
    pairs = list(pairwise(widths))
    down = [
        nn.Sequential(nn.Conv2d(a, b, 4, 2, 1), nn.InstanceNorm2d(b, affine=True), nn.LeakyReLU(0.2)) for a, b in pairs
    ]
    up = [
        nn.Sequential(nn.ConvTranspose2d(b, a, 4, 2, 1), nn.BatchNorm2d(a), nn.LeakyReLU(0.2))
        for a, b in reversed(pairs)
    ]
    return nn.Sequential(*down, *up, nn.Conv2d(3, 3, 3, padding=1), nn.Tanh())


def mlp(width: int = 2048) -> nn.Module:
    layers = ((nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)) for _ in range(5))
    return nn.Sequential(nn.Linear(256, width), *chain.from_iterable(layers), nn.Linear(width, CLASSES))


def gpt2() -> nn.Module:
    model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_embd=512, n_layer=6, n_head=8, use_cache=False))
    return model


def bert() -> nn.Module:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


LOOSE = {
    "gpt": Architecture("gpt", "GPT", Gpt, words, (
        c(1024),
        c(1024, 48, precision="bf16", optimizer_implementation="foreach"),
        c(512, 12, precision="bf16", checkpointed_blocks="all", optimizer_implementation="fused"),
        c(256, 8, precision="fp16", checkpointed_blocks="half", accumulation_steps=2),
    ), of_words),
    "gpt2": Architecture("gpt2", "GPT of transformers", gpt2, labelled, (
        c(512, precision="bf16"),
        c(1024, 16, precision="fp16", optimizer_implementation="fused"),
        c(128, 8, checkpointed_blocks="all"),
        c(256, 40, "sgd", precision="bf16", checkpointed_blocks="half", accumulation_steps=2),
    )),
    "encoder": Architecture("encoder", "encoder", Encoder, words, (
        c(128, 16),
        c(512, 32, precision="bf16"),
        c(384, 8, precision="fp16", checkpointed_blocks="all", optimizer_implementation="foreach"),
        c(200, 24, "sgd", precision="bf16", checkpointed_blocks="half"),
    ), of_words),
    "bert": Architecture("bert", "encoder of transformers", bert, labelled, (
        c(512, 48, precision="bf16", optimizer_implementation="fused"),
        c(128, 16, accumulation_steps=2),
        c(256, 12, precision="fp16", checkpointed_blocks="all"),
        c(300, 24, "sgd", checkpointed_blocks="half"),
    )),
    "resnet": Architecture("resnet", "convolutions, BatchNorm", ResNet, images, (
        c(224, 32, "sgd"),
        c(224, 48, precision="bf16", memory_format="channels_last"),
        c(160, 12, precision="fp16", checkpointed_blocks="all", optimizer_implementation="fused"),
        c(176, 20, precision="bf16", checkpointed_blocks="half", accumulation_steps=2),
    ), F.cross_entropy),
    "unet": Architecture("unet", "U-Net", UNet, pictures, (
        c(128, 24),
        c(256, 48, precision="bf16"),
        c(128, 8, precision="fp16", checkpointed_blocks="all", optimizer_implementation="fused"),
        c(192, 16, precision="bf16", memory_format="channels_last", accumulation_steps=2),
    ), F.mse_loss),
    "translator": Architecture("translator", "encoder-decoder", Translator, words, (
        c(128, 16),
        c(256, 40, precision="bf16", optimizer_implementation="foreach"),
        c(96, 8, precision="fp16", checkpointed_blocks="all"),
        c(512, 24, "sgd", precision="bf16", checkpointed_blocks="half"),
    ), of_words),
    "autoencoder": Architecture("autoencoder", "transposed convolutions", autoencoder, pictures, (
        c(128, 8),
        c(256, 20, precision="bf16"),
        c(128, 4, "sgd", precision="fp16", memory_format="channels_last"),
        c(64, 6, precision="bf16", optimizer_implementation="fused", accumulation_steps=2),
    ), F.mse_loss),
    "mlp": Architecture("mlp", "MLP", mlp, rows, (
        c(256, 8),
        c(256, 12, precision="bf16", optimizer_implementation="for-loop"),
        c(256, 5, "sgd", precision="fp16"),
        c(256, 8, precision="bf16", optimizer_implementation="fused", accumulation_steps=2),
    ), F.cross_entropy, unit=64),
}  # fmt: skip
"""Architectures by name. Those that are held back from development are in `held_back.py`."""
