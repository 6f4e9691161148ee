"""The examples' models, scaled to fill a device: large activations, small weights.

What a phantom never writes costs it nothing, so activations may have any size. Weights are snapshots of the guard,
so they are real bytes and stay at a few megabytes. All of them are made on the device.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from tests.examples.loading import load

DEVICE = "cuda"


def gpt(gib: float, global_batch_size: int | None = 4) -> autofit.Workload:
    """A text takes about a ninth of `gib` GiB, most of it for the logits, as with a real vocabulary."""
    module: Any = load("gpt")
    # Logits grow with the product, weights only with the sum.
    module.VOCABULARY, module.LONGEST = int(2900 * gib**0.5), int(5900 * gib**0.5)
    with torch.device(DEVICE):
        model = module.GPT(width=64, depth=2, heads=2)
    loader = DataLoader(module.Texts(64), batch_size=2, shuffle=True, collate_fn=module.collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return autofit.Workload(model, loader, optimizer=optimizer, global_batch_size=global_batch_size, max_grad_norm=1.0)


def convnet(gib: float, global_batch_size: int | None = 8) -> autofit.Workload:
    """Wide feature maps behind few numbers of an image: 32 images take more than `gib` GiB."""
    module, size = load("convnet"), 8 * round(11 * gib**0.5)
    with torch.device(DEVICE):
        stem = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU())
        stages = module.stage(256, 256, 2, stride=1), module.stage(256, 64, 1, stride=2)
        model = nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, module.CLASSES))
    images = torch.zeros(1, 3, size, size).expand(64, -1, -1, -1)
    loader = DataLoader(TensorDataset(images, torch.zeros(64, dtype=torch.long)), batch_size=2, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return autofit.Workload(
        model, loader, loss_fn=F.cross_entropy, optimizer=optimizer, global_batch_size=global_batch_size
    )


def huggingface(gib: float, global_batch_size: int | None = 4) -> autofit.Workload:
    """BERT, whose sentence takes about an eighth of `gib` GiB."""
    module: Any = load("huggingface")
    module.LONGEST = max(16 * round(96 * gib**0.5), 32)
    # Without padding no mask is made, which a kernel finds out: on a phantom what was in memory before would decide.
    # For good, as models look it up when they run.
    bert = sys.modules[module.BertForSequenceClassification.__module__]
    vars(bert)["create_bidirectional_mask"] = partial(bert.create_bidirectional_mask, allow_is_bidirectional_skip=False)
    config = module.BertConfig(
        vocab_size=module.VOCABULARY,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=module.LONGEST,
        num_labels=2,
        attn_implementation="eager",  # keeps all attention weights: memory grows with the square of the length
    )
    with torch.device(DEVICE):
        model = module.BertForSequenceClassification(config)
    loader = DataLoader(module.Sentences(64), batch_size=2, shuffle=True, collate_fn=module.collate)
    return autofit.Workload(
        model,
        loader,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-4),
        global_batch_size=global_batch_size,
    )


def tabular(gib: float, global_batch_size: int | None = None) -> autofit.Workload:
    """Tables of many rows as one sample, so that few samples fill the device; the batch is free."""
    module: Any = load("tabular")
    rows = max(int(256 * gib), 1)
    with torch.device(DEVICE):
        model = module.make_model(columns=2, width=512, depth=2)
    tables = torch.zeros(1, rows, 2).expand(512, -1, -1), torch.zeros(1, rows, 1).expand(512, -1, -1)
    return autofit.Workload(
        model,
        DataLoader(TensorDataset(*tables), batch_size=8, shuffle=True),
        global_batch_size=global_batch_size,
        max_global_batch_size=512 if global_batch_size is None else None,
    )


MAKERS: dict[str, Callable[..., autofit.Workload]] = {
    "gpt": gpt, "convnet": convnet, "tabular": tabular, "huggingface": huggingface
}  # fmt: skip
