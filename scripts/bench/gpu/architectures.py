"""Published architectures of `transformers` with random weights, as a user would write their training.

Each function is a target of `autofit tune`. The baseline is what a careful beginner writes: float32, not
compiled, a batch that fits. "full" is the published size; "tiny" is for a dry run on a CPU.
"""

from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit


def gpt2(scale: str = "full") -> autofit.Workload:
    """GPT-2 of 124 million parameters on 1,024 tokens; 64 texts in an optimizer step, 8 at a time."""
    full = scale == "full"
    length, vocabulary = (1024, 50257) if full else (32, 128)
    sizes: dict[str, Any] = {} if full else {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=vocabulary, use_cache=False, bos_token_id=0, eos_token_id=0, **sizes)
    )
    loader = DataLoader(texts(length, vocabulary), batch_size=8 if full else 2, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    return autofit.Workload(
        model,
        loader,
        step_fn=language_loss,
        optimizer=optimizer,
        global_batch_size=64 if full else 8,
        max_grad_norm=1.0,
    )


def resnet50(scale: str = "full") -> autofit.Workload:
    """ResNet-50 on images of 224 x 224, 256 in an optimizer step: BatchNorm needs them together."""
    full = scale == "full"
    sizes: dict[str, Any] = {} if full else {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]}
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000, **sizes))
    loader = DataLoader(_images(224 if full else 32), batch_size=256 if full else 4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return autofit.Workload(
        model, loader, step_fn=image_loss, optimizer=optimizer, global_batch_size=256 if full else 4
    )


def vit(scale: str = "full") -> autofit.Workload:
    """ViT-B/16 on images of 224 x 224, 256 in an optimizer step, 64 at a time."""
    full = scale == "full"
    sizes: dict[str, Any] = (
        {} if full else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(num_labels=1000, image_size=224 if full else 32, **sizes)
    )
    loader = DataLoader(_images(224 if full else 32), batch_size=64 if full else 4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return autofit.Workload(
        model, loader, step_fn=image_loss, optimizer=optimizer, global_batch_size=256 if full else 8
    )


def language_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Returns the mean loss of the next tokens."""
    loss: Tensor = model(input_ids=batch[0], labels=batch[0]).loss
    return loss


def image_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Returns the mean cross-entropy."""
    loss: Tensor = model(pixel_values=batch[0], labels=batch[1]).loss
    return loss


@cache
def texts(length: int, vocabulary: int, count: int = 4096) -> TensorDataset:
    return TensorDataset(torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(0)))


@cache
def _images(side: int, count: int = 1024) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, side, side, generator=generator)
    return TensorDataset(images, torch.randint(1000 if side == 224 else 10, (count,), generator=generator))


def llama(scale: str = "full") -> autofit.Workload:
    """A Llama-style decoder of 200 million parameters on 1,024 tokens; 64 texts in an optimizer step, 8 at a time."""
    full = scale == "full"
    length, vocabulary = (1024, 32000) if full else (32, 128)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8}
    if not full:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocabulary, intermediate_size=4 * sizes["hidden_size"], use_cache=False, **sizes
        )
    )
    loader = DataLoader(texts(length, vocabulary), batch_size=8 if full else 2, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    total = 64 if full else 8
    return autofit.Workload(
        model, loader, step_fn=language_loss, optimizer=optimizer, global_batch_size=total, max_grad_norm=1.0
    )


def convnext(scale: str = "full") -> autofit.Workload:
    """ConvNeXt-T on images of 224 x 224, 256 in an optimizer step, 64 at a time."""
    full = scale == "full"
    sizes: dict[str, Any] = {} if full else {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
    torch.manual_seed(0)
    model = transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=1000, **sizes))
    return _of_images(model, full)


def swin(scale: str = "full") -> autofit.Workload:
    """Swin-T on images of 224 x 224, 256 in an optimizer step, 64 at a time."""
    full = scale == "full"
    sizes: dict[str, Any] = {} if full else {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4}
    torch.manual_seed(0)
    config = transformers.SwinConfig(num_labels=1000, image_size=224 if full else 32, **sizes)
    return _of_images(transformers.SwinForImageClassification(config), full)


def t5(scale: str = "full") -> autofit.Workload:
    """T5-base on 512 tokens, encoder and decoder; 64 texts in an optimizer step, 8 at a time."""
    full = scale == "full"
    length, vocabulary = (512, 32128) if full else (16, 128)
    sizes = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
    if not full:
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=vocabulary, decoder_start_token_id=0, use_cache=False, **sizes)
    )
    loader = DataLoader(texts(length, vocabulary), batch_size=8 if full else 2, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    total = 64 if full else 8
    return autofit.Workload(model, loader, step_fn=language_loss, optimizer=optimizer, global_batch_size=total)


def _of_images(model: nn.Module, full: bool) -> autofit.Workload:
    loader = DataLoader(_images(224 if full else 32), batch_size=64 if full else 4, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return autofit.Workload(
        model, loader, step_fn=image_loss, optimizer=optimizer, global_batch_size=256 if full else 8
    )
