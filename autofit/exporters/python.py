"""Plain PyTorch: a training loop that does what was measured, without autofit."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.recommendation import Recommendation
from autofit.exporters.base import Exporter, Settings

_PRECISIONS: dict[KnobValue, Settings] = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"AUTOCAST_DTYPE": "torch.bfloat16"},
    "fp16": {"AUTOCAST_DTYPE": "torch.float16", "scaler": True},
}
_MEMORY_FORMATS: dict[KnobValue, Settings] = {"default": {}, "channels_last": {"channels_last": True}}
_OPTIMIZERS: dict[KnobValue, Settings] = {
    "default": {},
    "for-loop": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": False}},
    "foreach": {"OPTIMIZER_FLAGS": {"foreach": True, "fused": False}},
    "fused": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": True}},
}


def _count(key: str, default: int) -> Callable[[KnobValue], Settings | None]:
    """Returns what says a whole number of at least `default`, which is what the loop does without the key."""

    def say(value: KnobValue) -> Settings | None:
        if type(value) is not int or value < default:
            return None
        return {key: value} if value > default else {}

    return say


_SAYS: Mapping[str, Callable[[KnobValue], Settings | None]] = {
    MICRO_BATCH_SIZE: _count("MICRO_BATCH_SIZE", 0),
    ACCUMULATION_STEPS: _count("ACCUMULATION_STEPS", 1),
    "precision": _PRECISIONS.get,
    "checkpointed_blocks": _count("CHECKPOINTED_BLOCKS", 0),
    "memory_format": _MEMORY_FORMATS.get,
    "optimizer_implementation": _OPTIMIZERS.get,
}
"""What each knob becomes: constants at the top of the file in capitals, parts of the loop in small letters."""


class Python(Exporter):
    """A module with a function `train`, or `predict` for a plan that was tuned for inference."""

    name: ClassVar[str] = "python"
    filename: ClassVar[str] = "train_loop.py"

    def fields(self, plan: Plan, recommendation: Recommendation) -> Mapping[str, Settings]:
        """Returns constants and parts of the loop for each knob."""
        said = {knob: _SAYS[knob](value) for knob, value in plan.values.items() if knob in _SAYS}
        return {knob: settings for knob, settings in said.items() if settings is not None}

    def render(self, settings: Settings, recommendation: Recommendation) -> str:
        """Returns the module's text."""
        environment = recommendation.environment.settings
        predicts = environment.get("mode") == "inference"
        norm = _positive(environment.get("max_grad_norm", ""))
        if norm is not None and not predicts:
            settings = {**settings, "MAX_GRAD_NORM": norm}
        parts = frozenset(_PARTS.get(key, key) for key in settings)
        constants = "".join(f"{key} = {value}\n" for key, value in settings.items() if key.isupper())
        loop = _PREDICT if predicts else _TRAIN
        name = environment.get("optimizer", "")
        text = (_IMPORTS + _CONSTANTS + loop + _HELPERS).replace("AdamW", name if name.isidentifier() else "AdamW")
        return _select(text, parts).replace(_CONSTANTS, constants)


def _positive(text: str) -> float | None:
    """Returns the number above 0 that `text` says, or None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number > 0 and math.isfinite(number) else None


def _select(template: str, parts: frozenset[str]) -> str:
    """Returns the lines of `template` that go with `parts`.

    A line that ends in `#? a !b` is there when `a` is a part and `b` is not.
    """
    lines = []
    for line in template.splitlines():
        code, _, flags = line.partition("  #? ")
        if all((flag.lstrip("!") in parts) != flag.startswith("!") for flag in flags.split()):
            lines.append(code)
    return "".join(f"{line}\n" for line in lines)


_PARTS = {
    "ACCUMULATION_STEPS": "accumulate",
    "AUTOCAST_DTYPE": "autocast",
    "CHECKPOINTED_BLOCKS": "blocks",
    "OPTIMIZER_FLAGS": "flags",
    "MAX_GRAD_NORM": "clip",
}
"""What the constants are called in the templates below."""

_CONSTANTS = "# constants\n"

_IMPORTS = """
from collections.abc import Mapping
from functools import partial  #? blocks

import torch
from torch.utils.checkpoint import checkpoint  #? blocks

"""

_TRAIN = '''

def train(model, loader, optimizer, compute_loss, epochs=1):  #? !blocks
def train(model, loader, optimizer, compute_loss, epochs=1, blocks=None):  #? blocks
    """Trains `model`, which is on its device already, with the plan that was measured. Call it once.

    loader = torch.utils.data.DataLoader(dataset, batch_size=MICRO_BATCH_SIZE, shuffle=True)
    optimizer = AdamW(model.parameters())  #? !flags
    optimizer = AdamW(model.parameters(), **OPTIMIZER_FLAGS)  #? flags
    compute_loss(model, batch) returns the mean loss over the samples of a batch.
    blocks: the repeated layers, first to last, such as model.layers. Without them a transformers model  #? blocks
    checkpoints all of its layers. A BatchNorm inside a block counts each batch twice.  #? blocks
    """
    device = next(model.parameters()).device
    for flag, value in OPTIMIZER_FLAGS.items():  #? flags
        if optimizer.defaults[flag] != value:  #? flags
            raise ValueError(f"make the optimizer with {flag}={value}")  #? flags
    torch.backends.cuda.matmul.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.conv.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.rnn.fp32_precision = "tf32"  #? tf32
    model.to(memory_format=torch.channels_last)  #? channels_last
    checkpoint_first(model, blocks)  #? blocks
    scaler = torch.amp.GradScaler(device.type)  #? scaler
    model.train()
    for _ in range(epochs):
        for batch in loader:  #? !accumulate
            with torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? !accumulate autocast
                loss = compute_loss(model, to_device(batch, device))  #? !accumulate autocast
            loss = compute_loss(model, to_device(batch, device))  #? !accumulate !autocast
            scaler.scale(loss).backward()  #? !accumulate scaler
            loss.backward()  #? !accumulate !scaler
        for batches in steps(loader):  #? accumulate
            samples = sum(size(batch) for batch in batches)  #? accumulate
            for batch in batches:  #? accumulate
                with torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? accumulate autocast
                    loss = compute_loss(model, to_device(batch, device))  #? accumulate autocast
                loss = compute_loss(model, to_device(batch, device))  #? accumulate !autocast
                loss = loss * (size(batch) / samples)  #? accumulate
                scaler.scale(loss).backward()  #? accumulate scaler
                loss.backward()  #? accumulate !scaler
            scaler.unscale_(optimizer)  #? clip scaler
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)  #? clip
            scaler.step(optimizer)  #? scaler
            scaler.update()  #? scaler
            optimizer.step()  #? !scaler
            optimizer.zero_grad(set_to_none=True)
  #? blocks
  #? blocks
def checkpoint_first(model, blocks):  #? blocks
    if blocks is None:  #? blocks
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  #? blocks
        return  #? blocks
    if len(blocks) < CHECKPOINTED_BLOCKS:  #? blocks
        raise ValueError(f"found {len(blocks)} blocks, the plan checkpoints {CHECKPOINTED_BLOCKS}")  #? blocks
    for block in list(blocks)[:CHECKPOINTED_BLOCKS]:  #? blocks
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  #? blocks
  #? accumulate
  #? accumulate
def steps(loader):  #? accumulate
    """Yields the micro batches of one optimizer step after the other; the last step may have fewer."""  #? accumulate
    batches = []  #? accumulate
    for batch in loader:  #? accumulate
        batches.append(batch)  #? accumulate
        if len(batches) == ACCUMULATION_STEPS:  #? accumulate
            yield batches  #? accumulate
            batches = []  #? accumulate
    if batches:  #? accumulate
        yield batches  #? accumulate
  #? accumulate
  #? accumulate
def size(batch):  #? accumulate
    """Returns the number of samples."""  #? accumulate
    if isinstance(batch, torch.Tensor):  #? accumulate
        return len(batch)  #? accumulate
    parts = batch.values() if isinstance(batch, Mapping) else batch  #? accumulate
    return next(size(part) for part in parts if isinstance(part, (torch.Tensor, Mapping, list, tuple)))  #? accumulate
'''

_PREDICT = '''

def predict(model, loader, forward):
    """Yields `forward(model, batch)` for each batch, with the plan that was measured.

    loader = torch.utils.data.DataLoader(dataset, batch_size=MICRO_BATCH_SIZE)
    """
    device = next(model.parameters()).device
    torch.backends.cuda.matmul.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.conv.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.rnn.fp32_precision = "tf32"  #? tf32
    model.to(memory_format=torch.channels_last)  #? channels_last
    model.eval()
    for batch in loader:
        with torch.inference_mode(), torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? autocast
        with torch.inference_mode():  #? !autocast
            outputs = forward(model, to_device(batch, device))
        yield outputs
'''

_HELPERS = """

def to_device(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)  #? !channels_last
        layout = torch.channels_last if batch.dim() == 4 else torch.preserve_format  #? channels_last
        return batch.to(device, non_blocking=True, memory_format=layout)  #? channels_last
    if isinstance(batch, Mapping):
        return {key: to_device(part, device) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [to_device(part, device) for part in batch]
    return batch
"""
