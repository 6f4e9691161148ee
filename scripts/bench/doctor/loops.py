"""Loops and scripts as they should be written."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.doctor.diagnosis import Diagnosis
from autofit.doctor.loops import WatchedLoader

Loader = WatchedLoader[list[Tensor]]


def _loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(640, 64), torch.arange(640) % 10), batch_size=32)


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))


def watched(loop: Callable[[Loader], None]) -> Diagnosis:
    """Returns what was found in a loop.

    Raises:
        RuntimeError: nothing was observed.
    """
    torch.manual_seed(0)
    loader: Loader = autofit.watch(_loader(), show=False)
    loop(loader)
    if loader.diagnosis is None:
        raise RuntimeError("the loop was not observed")
    return loader.diagnosis


def train(loader: Loader) -> None:
    model = _model()
    optimizer, total = torch.optim.AdamW(model.parameters()), 0.0
    for points, labels in loader:
        loss = F.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()


def evaluate(loader: Loader) -> None:
    model, right = _model().eval(), 0
    with torch.no_grad():
        for points, labels in loader:
            right += int((model(points).argmax(1) == labels).sum())


def collect(loader: Loader) -> None:
    """Keeps the last three results only."""
    model, last = _model().eval(), list[Tensor]()
    with torch.inference_mode():
        for points, _ in loader:
            last = [*last[-2:], model(points)]


def accumulate(loader: Loader) -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (points, labels) in enumerate(loader):
        (F.cross_entropy(model(points), labels) / 2).backward()  # type: ignore[no-untyped-call]
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def second_order(loader: Loader) -> None:
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for points, labels in loader:

        def closure(points: Tensor = points, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(points), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[no-untyped-call]


def scaled(loader: Loader) -> None:
    """Scales the loss, as float16 needs it."""
    model = _model()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for points, labels in loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(points), labels)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def reinforce(loader: Loader) -> None:
    """A policy gradient: an episode of steps without gradients, then one update."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    for points, _ in loader:
        with torch.no_grad():
            actions = torch.distributions.Categorical(logits=model(points)).sample()  # type: ignore[no-untyped-call]
        gains = (actions == 3).float()
        chosen = torch.distributions.Categorical(logits=model(points)).log_prob(actions)  # type: ignore[no-untyped-call]
        loss = -(chosen * (gains - gains.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


LOOPS: MappingProxyType[str, Callable[[Loader], None]] = MappingProxyType(
    {
        "training": train, "evaluation": evaluate, "last results": collect, "accumulation": accumulate,
        "second order": second_order, "scaled": scaled, "reinforce": reinforce,
    }
)  # fmt: skip
"""Loops over a watched loader, by name."""

_HEAD = """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
rows = TensorDataset(torch.randn(640, 64), torch.arange(640) % 10)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
"""
SCRIPTS: MappingProxyType[str, str] = MappingProxyType(
    {
        "plain": _HEAD + """
optimizer = torch.optim.AdamW(model.parameters())
for points, labels in DataLoader(rows, batch_size=32, num_workers=2):
    loss = F.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "accumulating": _HEAD + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for number, (points, labels) in enumerate(DataLoader(rows, batch_size=8)):
    (F.cross_entropy(model(points), labels) / 4).backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
        "two optimizers": _HEAD + """
generator = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 64))
critic = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
first, second = (torch.optim.Adam(part.parameters()) for part in (critic, generator))
for points, _ in DataLoader(rows, batch_size=32):
    with torch.no_grad():
        fake = generator(torch.randn(len(points), 16))
    loss = F.softplus(-critic(points)).mean() + F.softplus(critic(fake)).mean()
    first.zero_grad()
    loss.backward()
    first.step()
    critic.requires_grad_(False)
    loss = F.softplus(-critic(generator(torch.randn(len(points), 16)))).mean()
    second.zero_grad()
    loss.backward()
    second.step()
    critic.requires_grad_(True)
""",
        "evaluating between": _HEAD + """
optimizer = torch.optim.AdamW(model.parameters())
for points, labels in DataLoader(rows, batch_size=32):
    model.train()
    loss = F.cross_entropy(model(points), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        F.cross_entropy(model(points), labels).item()
""",
        "hugging face": """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=128, n_layer=3, n_head=4, n_positions=64))
words = [torch.randint(0, 512, (32,)) for _ in range(256)]
rows = [{"input_ids": each, "labels": each} for each in words]
arguments = TrainingArguments("out", per_device_train_batch_size=8, use_cpu=True, report_to=[], max_steps=30,
                              gradient_accumulation_steps=2, logging_steps=2)
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
        "lightning": _HEAD + """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = model
    def training_step(self, batch, place):
        loss = F.cross_entropy(self.inner(batch[0]), batch[1])
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Module(), DataLoader(rows, batch_size=32))
""",
        "accelerate": _HEAD + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(rows, batch_size=32))
for points, labels in loader:
    loss = F.cross_entropy(model(points), labels)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
""",
    }
)  # fmt: skip
"""Texts of scripts, by name."""


def of_script(name: str, text: str) -> Diagnosis:
    """Returns what `autofit doctor --script` finds.

    Raises:
        RuntimeError: it failed, or its output is not the result alone.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "autofit", "doctor", "--script", str(script), "--json", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return Diagnosis.model_validate_json(done.stdout)
