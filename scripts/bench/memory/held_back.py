"""Architectures of the benchmark of memory estimates that were held back while tracing was developed.

They use operators that the architectures in `architectures.py` do not use: depthwise convolutions and gates, RMSNorm
and rotary positions, grouped heads, attention with a learned bias.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from scripts.bench.memory.architecture import CLASSES, WORDS, Architecture, c, images, labelled


def pixels(size: int, side: int) -> dict[str, Tensor]:
    values, labels = images(size, side)
    return {"pixel_values": values, "labels": labels}


def vit(side: int = 224) -> nn.Module:
    config = ViTConfig(
        image_size=side, hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536,
        num_labels=CLASSES, hidden_dropout_prob=0.1,
    )  # fmt: skip
    model: nn.Module = ViTForImageClassification(config)
    return model


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=2, max_position_embeddings=1024, use_cache=False,
    )  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model


def t5() -> nn.Module:
    config = T5Config(
        vocab_size=WORDS, d_model=512, d_kv=64, d_ff=1024, num_layers=4, num_heads=8, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    model: nn.Module = T5ForConditionalGeneration(config)
    return model


def convnext() -> nn.Module:
    config = ConvNextConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 4, 2], num_labels=CLASSES, drop_path_rate=0.1
    )
    model: nn.Module = ConvNextForImageClassification(config)
    return model


class Inverted(nn.Module):
    """An inverted bottleneck with a depthwise convolution and a gate over channels."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int = 4) -> None:
        super().__init__()
        width = widen * inputs
        self.expand = nn.Sequential(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(width, width, 5, stride, 2, groups=width, bias=False), nn.BatchNorm2d(width), nn.SiLU()
        )
        self.squeeze, self.excite = nn.Conv2d(width, inputs // 4, 1), nn.Conv2d(inputs // 4, width, 1)
        self.project = nn.Sequential(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        gate = self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        y = self.project(y * torch.sigmoid(gate))
        out: Tensor = x + y if self.same else y
        return out


class EfficientNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU())
        plan = [
            (32, 32, 1),
            (32, 48, 2),
            (48, 48, 1),
            (48, 96, 2),
            (96, 96, 1),
            (96, 96, 1),
            (96, 160, 2),
            (160, 160, 1),
        ]
        self.blocks = nn.ModuleList(Inverted(*sizes) for sizes in plan)
        self.head = nn.Sequential(nn.Conv2d(160, 640, 1, bias=False), nn.BatchNorm2d(640), nn.Hardswish())
        self.out = nn.Linear(640, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.out(F.dropout(self.head(x).mean((2, 3)), 0.2, self.training))
        return out


HELD_BACK = {
    "vit": Architecture("vit", "ViT of transformers", vit, pixels, (
        c(224, 16),
        c(224, 40, precision="bf16", optimizer_implementation="fused"),
        c(224, 8, precision="fp16", checkpointed_blocks="all"),
        c(224, 24, "sgd", precision="bf16", checkpointed_blocks="half", accumulation_steps=2),
    )),
    "llama": Architecture("llama", "Llama of transformers", llama, labelled, (
        c(256, 16),
        c(1024, 48, precision="bf16", optimizer_implementation="fused"),
        c(512, 12, precision="fp16", checkpointed_blocks="all"),
        c(384, 24, precision="bf16", checkpointed_blocks="half", accumulation_steps=2),
    )),
    "t5": Architecture("t5", "T5 of transformers", t5, labelled, (
        c(128, 12),
        c(512, 48, precision="bf16"),
        c(256, 16, checkpointed_blocks="all", optimizer_implementation="foreach"),
        c(192, 24, "sgd", precision="bf16", checkpointed_blocks="half"),
    )),
    "efficientnet": Architecture("efficientnet", "depthwise convolutions", EfficientNet, images, (
        c(224, 32),
        c(192, 16, precision="bf16", memory_format="channels_last"),
        c(224, 8, precision="fp16", checkpointed_blocks="all", optimizer_implementation="fused"),
        c(128, 48, "sgd", precision="bf16", accumulation_steps=2),
    ), F.cross_entropy),
    "convnext": Architecture("convnext", "ConvNeXt of transformers", convnext, pixels, (
        c(224, 16),
        c(224, 40, precision="bf16", memory_format="channels_last"),
        c(160, 12, precision="fp16", checkpointed_blocks="half", optimizer_implementation="foreach"),
        c(192, 24, "sgd", precision="bf16", accumulation_steps=2),
    )),
}  # fmt: skip
"""Architectures by name."""
