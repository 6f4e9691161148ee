"""Tiny models of many architectures, each with a loader, whose samples do not interact in training."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autofit.workloads.workload import Workload
from tests.probing import targets

SIZE, SAMPLES, WORDS, CLASSES = 8, 24, 40, 4


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _loader(*shape: int, targets: torch.Tensor | None = None) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, *shape, generator=generator)
    classes = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(inputs, classes if targets is None else targets), SIZE)


def _of(model: nn.Module, loader: DataLoader[Any], step_fn: Any = cross_entropy) -> Workload:
    return Workload(model, loader, step_fn=step_fn, optimizer=lambda params: torch.optim.SGD(params, lr=0.05))


def mlp() -> Workload:
    return _of(targets.mlp(64), _loader(8))


def regression() -> Workload:
    rows = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(6))
    layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3))
    return _of(layers, _loader(8, targets=rows), lambda model, batch: F.huber_loss(model(batch[0]), batch[1]))


def sum_of_losses() -> Workload:
    """Its loss is a sum over samples."""
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / 100  # noqa: E731
    return _of(targets.mlp(64), _loader(8), loss)


def convnet() -> Workload:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return _of(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)), _loader(3, 12, 12))


class Frozen(nn.BatchNorm2d):
    """Batch normalisation that keeps its statistics, as in detection."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


def frozen_statistics() -> Workload:
    layers = [nn.Conv2d(3, 8, 3, padding=1), Frozen(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), Frozen(8), nn.ReLU()]
    return _of(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)), _loader(3, 12, 12))


class UNet(nn.Module):
    """Two scales with a skip connection; classifies pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2, padding=1)
        self.up, self.head = nn.ConvTranspose2d(6, 6, 2, stride=2), nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = F.relu(self.down(x))
        out: torch.Tensor = self.head(torch.cat([first, self.up(F.relu(self.deep(first)))], 1))
        return out


def unet() -> Workload:
    pixels = torch.randint(0, CLASSES, (SAMPLES, 12, 12), generator=torch.Generator().manual_seed(6))
    return _of(UNet(), _loader(3, 12, 12, targets=pixels))


class Recurrent(nn.Module):
    """A recurrent layer of some kind, with a head on its last state."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return out


def lstm() -> Workload:
    return _of(Recurrent(nn.LSTM), _loader(10, 8))


def gru() -> Workload:
    return _of(Recurrent(nn.GRU), _loader(10, 8))


def spectral() -> Workload:
    """Each pass updates the vectors of spectral normalisation, which are buffers."""
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64), n_power_iterations=4)
    return _of(nn.Sequential(nn.Linear(8, 64), layer, nn.ReLU(), nn.Linear(64, CLASSES)), _loader(8))


def tied() -> Workload:
    """Its embedding is its head, so that a gradient comes from two places."""
    model = nn.Sequential(nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS, bias=False))
    model[2].weight = model[0].weight
    ids = torch.randint(0, WORDS, (SAMPLES, 10), generator=torch.Generator().manual_seed(7))
    loss = lambda model, batch: F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())  # noqa: E731
    return _of(model, DataLoader(TensorDataset(ids), SIZE), loss)


class Texts(Dataset[Any]):
    """Sequences of 4 to 12 words."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, at: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(at)
        return torch.randint(1, WORDS, (4 + at * 5 % 9,), generator=generator)


def _padded(rows: list[torch.Tensor], **more: Any) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def _classified(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**_padded(rows), "labels": torch.tensor([int(row[0]) % CLASSES for row in rows])}


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORD = {"vocab_size": WORDS, "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def language_model(name: str, **config: Any) -> Workload:
    """A model of transformers of this kind, which averages its loss over the tokens of a batch."""
    import transformers  # noqa: PLC0415  # takes seconds

    made = getattr(transformers, f"{name}Config")(**config)
    model = transformers.AutoModelForCausalLM.from_config(made)
    return _of(model, DataLoader(Texts(), SIZE, collate_fn=_padded), lambda model, batch: model(**batch).loss)


def classifier(name: str, **config: Any) -> Workload:
    """A model of transformers of this kind, which classifies texts."""
    import transformers  # noqa: PLC0415  # takes seconds

    made = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **config)
    model = transformers.AutoModelForSequenceClassification.from_config(made)
    return _of(model, DataLoader(Texts(), SIZE, collate_fn=_classified), lambda model, batch: model(**batch).loss)


def vision(name: str, **config: Any) -> Workload:
    """A model of transformers of this kind, which classifies images."""
    import transformers  # noqa: PLC0415  # takes seconds

    made = getattr(transformers, f"{name}Config")(num_labels=CLASSES, image_size=16, num_channels=3, **config)
    model = transformers.AutoModelForImageClassification.from_config(made)
    return _of(model, _loader(3, 16, 16), lambda model, batch: model(pixel_values=batch[0], labels=batch[1]).loss)


def t5() -> Workload:
    import transformers  # noqa: PLC0415  # takes seconds

    config = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    special = {"vocab_size": WORDS, "decoder_start_token_id": 0}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**config, **special))
    return _of(model, DataLoader(Texts(), SIZE, collate_fn=_padded), lambda model, batch: model(**batch).loss)


GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
ARCHITECTURES: dict[str, Callable[[], Workload]] = {
    "mlp": mlp,
    "regression": regression,
    "sum of losses": sum_of_losses,
    "convnet": convnet,
    "frozen statistics": frozen_statistics,
    "unet": unet,
    "lstm": lstm,
    "gru": gru,
    "tied": tied,
    "gpt2": lambda: language_model("GPT2", **GPT2, vocab_size=WORDS, n_positions=32, bos_token_id=1, eos_token_id=1),
    "llama": lambda: language_model("Llama", **SMALL, **WORD),
    "mistral": lambda: language_model("Mistral", **SMALL, **WORD, num_key_value_heads=1),
    "gpt neox": lambda: language_model("GPTNeoX", **SMALL, **WORD, hidden_dropout=0.0, attention_dropout=0.0),
    "bert": lambda: classifier("Bert", **SMALL, **WORD, **NO_DROPOUT),
    "roberta": lambda: classifier("Roberta", **SMALL, **WORD, **NO_DROPOUT),
    "electra": lambda: classifier("Electra", **SMALL, **WORD, **NO_DROPOUT, embedding_size=16),
    "t5": t5,
    "vit": lambda: vision("ViT", **SMALL, **NO_DROPOUT, patch_size=4),
    "convnext": lambda: vision("ConvNext", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2),
}
"""Each makes a workload without random draws, whose parts have the gradient of the whole."""
