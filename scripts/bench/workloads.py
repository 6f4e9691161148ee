"""The workloads of the recorded tables: real architectures with random weights, small enough for a grid on a CPU.

    python -m scripts.bench.search.record_table scripts.bench.workloads:gpt TABLE.json --memory 1GiB

Needs transformers, from the extra `examples`.
"""

from itertools import chain, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from scripts.bench.memory.architectures import down_and_up

SAMPLES, WORDS, CLASSES, IGNORED = 512, 512, 10, -100
SHORTEST, LONGEST = 8, 96


def gpt() -> dict[str, Any]:
    """A GPT-2 on texts of one length; the batch is free."""
    return {"model": _gpt2(), "loader": DataLoader(Texts([48] * SAMPLES), batch_size=4, collate_fn=_together)}


def gpt_varied() -> dict[str, Any]:
    """A GPT-2 on texts of varying length, most of them short; the batch is free."""
    lengths = SHORTEST + (LONGEST - SHORTEST) * torch.rand(SAMPLES, generator=_chance()) ** 2
    texts = Texts([int(length) for length in lengths])
    return {"model": _gpt2(), "loader": DataLoader(texts, batch_size=4, shuffle=True, collate_fn=_together)}


def encoder() -> dict[str, Any]:
    """A BERT with masked words; 32 texts a step."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    loader = DataLoader(Texts([32] * SAMPLES), batch_size=8, collate_fn=_together)
    return {"model": BertForMaskedLM(config), "loader": loader, "global_batch_size": 32}


def resnet() -> dict[str, Any]:
    """A ResNet with bottlenecks and BatchNorm on images of 48 pixels; the batch is free, SGD with momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        Bottleneck(32, 16, 1), Bottleneck(64, 16, 1), Bottleneck(64, 32, 2), Bottleneck(128, 32, 1),
        Bottleneck(128, 64, 2), Bottleneck(256, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES),
    )  # fmt: skip
    images = torch.randn(SAMPLES, 3, 48, 48, generator=_chance())
    return {
        "model": model,
        "loader": DataLoader(TensorDataset(images, _labels()), batch_size=8),
        "loss_fn": F.cross_entropy,
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    }


def unet() -> dict[str, Any]:
    """A U-Net with GroupNorm that returns images of 48 pixels; 16 images a step."""
    torch.manual_seed(0)
    images = torch.randn(SAMPLES, 3, 48, 48, generator=_chance())
    loader = DataLoader(TensorDataset(images, images), batch_size=4)
    return {"model": UNet(), "loader": loader, "loss_fn": F.mse_loss, "global_batch_size": 16}


def mlp() -> dict[str, Any]:
    """Three wide layers with dropout on rows of a table; the batch is free."""
    torch.manual_seed(0)
    widths = [128, 768, 768, 768]
    layers = ((nn.Linear(a, b), nn.ReLU(), nn.Dropout(0.1)) for a, b in pairwise(widths))
    rows = torch.randn(SAMPLES, widths[0], generator=_chance())
    return {
        "model": nn.Sequential(*chain.from_iterable(layers), nn.Linear(widths[-1], CLASSES)),
        "loader": DataLoader(TensorDataset(rows, _labels()), batch_size=16),
        "loss_fn": F.cross_entropy,
    }


class Bottleneck(nn.Module):
    """A residual block as in ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns feature maps whose sides are divided by the stride, [samples, 4 * width, height, width]."""
        return F.relu(self.body(x) + self.shortcut(x))


class UNet(nn.Module):
    """A U-Net with two levels: halves the images twice, restores them, and has a skip connection at each size."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width]
        self.down = nn.ModuleList(_double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = _double(2 * width, 4 * width)
        self.up = nn.ModuleList(_double(3 * b, b) for b in reversed(widths))
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Returns images of the same shape as the input, [samples, 3, height, width]."""
        out: Tensor = self.out(down_and_up(x, self.down, self.middle, self.up))
        return out


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers = ((nn.Conv2d(a, outputs, 3, 1, 1), nn.GroupNorm(4, outputs), nn.SiLU()) for a in (inputs, outputs))
    return nn.Sequential(*chain.from_iterable(layers))


def _gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=WORDS, n_embd=128, n_layer=4, n_head=4, n_positions=LONGEST, use_cache=False)
    model: nn.Module = GPT2LMHeadModel(config)
    return model


class Texts(Dataset[Tensor]):
    """Random texts of the given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        chance = _chance()
        self._texts = [torch.randint(WORDS, (length,), generator=chance) for length in lengths]

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Tensor:
        return self._texts[index]


def _together(texts: list[Tensor]) -> dict[str, Tensor]:
    """Pads texts to the longest one; padding has no label."""
    ids = pad_sequence(texts, batch_first=True)
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, IGNORED)}


def _labels() -> Tensor:
    return torch.randint(CLASSES, (SAMPLES,), generator=_chance())


def _chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)
