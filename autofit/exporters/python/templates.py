"""Templates of the exported module.

A line that ends in `#? a !b` is included if `a` is a part of the loop and `b` is not (see `select`).
"""

CONSTANTS = "# constants\n"
"""Placeholder for the constants of a plan."""
COUNTED = "entries that count"
"""Placeholder for the expression that counts the useful entries of a batch."""

IMPORTS = """
import copy
from collections.abc import Mapping
from functools import partial  #? blocks

import torch
from torch.utils.checkpoint import checkpoint  #? blocks
from torch.utils.data import DataLoader  #? by_samples
from torch.utils.data import RandomSampler  #? grouped

"""

TRAIN = '''

def train(model, loader, optimizer, compute_loss, epochs=1):  #? !blocks
def train(model, loader, optimizer, compute_loss, epochs=1, blocks=None):  #? blocks
    """Trains `model`, which must be on its device, with the measured plan. Call it once.

    loader = torch.utils.data.DataLoader(dataset, batch_size=MICRO_BATCH_SIZE, shuffle=True)  #? micro !grouped
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=ByLength(lengths))  #? grouped
    optimizer = AdamW(model.parameters())
    compute_loss(model, batch) returns the mean loss over the samples of a batch.  #? !weighted !summed
    compute_loss(model, batch) returns the sum of the losses of the samples of a batch.  #? summed
    compute_loss(model, batch) returns the mean loss over the entries that `size` counts.  #? weighted
    blocks: the repeated layers, first to last, such as model.layers. A transformers model finds its own.  #? blocks
    A BatchNorm inside a block is updated twice per batch.  #? blocks
    """
    if getattr(loader, "batch_size", None) not in (None, MICRO_BATCH_SIZE):  #? micro
        raise ValueError(f"found batches of {loader.batch_size}, the plan has batch_size={MICRO_BATCH_SIZE}")  #? micro
    if not isinstance(getattr(loader, "batch_sampler", None), ByLength):  #? grouped
        raise ValueError("the plan has batches of similar length: pass batch_sampler=ByLength(...)")  #? grouped
    device = next(model.parameters()).device
    torch.backends.cuda.matmul.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.conv.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.rnn.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.benchmark = True  #? benchmark
    model.to(memory_format=torch.channels_last)  #? channels_last
    set_implementation(optimizer)  #? flags
    checkpoint_first(model, blocks)  #? blocks
    model = torch.compile(model, mode=COMPILE_MODE)  #? compiled
    scaler = torch.amp.GradScaler(device.type)  #? scaler
    model.train()
    optimizer.zero_grad(set_to_none=True)
    for _ in range(epochs):
        for batch in loader:  #? !accumulate
            with torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? !accumulate autocast
                loss = compute_loss(model, to_device(batch, device))  #? !accumulate autocast
            loss = compute_loss(model, to_device(batch, device))  #? !accumulate !autocast
            scaler.scale(loss).backward()  #? !accumulate scaler
            loss.backward()  #? !accumulate !scaler
        for batches in steps(loader):  #? accumulate
            total = sum(samples for samples, _ in batches)  #? accumulate !summed
            if not total:  #? weighted
                continue  #? weighted
            for samples, batch in batches:  #? accumulate !summed
            for batch in batches:  #? summed
                if not samples:  #? weighted
                    continue  #? weighted
                with torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? accumulate autocast
                    loss = compute_loss(model, to_device(batch, device))  #? accumulate autocast
                loss = compute_loss(model, to_device(batch, device))  #? accumulate !autocast
                loss = loss * (samples / total)  #? accumulate !summed
                scaler.scale(loss).backward()  #? accumulate scaler
                loss.backward()  #? accumulate !scaler
            scaler.unscale_(optimizer)  #? clip scaler
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)  #? clip
            scaler.step(optimizer)  #? scaler
            scaler.update()  #? scaler
            optimizer.step()  #? !scaler
            optimizer.zero_grad(set_to_none=True)
'''

PREDICT = '''

def predict(model, loader, forward):
    """Yields `forward(model, batch)` for each batch, with the measured plan.

    loader = torch.utils.data.DataLoader(dataset, batch_size=MICRO_BATCH_SIZE)  #? micro
    """
    device = next(model.parameters()).device
    torch.backends.cuda.matmul.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.conv.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.rnn.fp32_precision = "tf32"  #? tf32
    torch.backends.cudnn.benchmark = True  #? benchmark
    model.to(memory_format=torch.channels_last)  #? channels_last
    model = torch.compile(model, mode=COMPILE_MODE)  #? compiled
    model.eval()
    for batch in loader:
        with torch.inference_mode(), torch.autocast(device.type, dtype=AUTOCAST_DTYPE):  #? autocast
        with torch.inference_mode():  #? !autocast
            outputs = forward(model, to_device(batch, device))
        yield outputs
'''

_SET_IMPLEMENTATION = '''

def set_implementation(optimizer):
    """Selects the implementation of the optimizer's update."""
    for group in [optimizer.defaults, *optimizer.param_groups]:
        group.update({flag: value for flag, value in OPTIMIZER_FLAGS.items() if flag in group})
    fused = OPTIMIZER_FLAGS["fused"]
    optimizer._step_supports_amp_scaling = optimizer._need_device_dtype_check_for_fused = fused
    for parameter, state in optimizer.state.items():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device if fused else "cpu", torch.float32)
'''

_CHECKPOINT_FIRST = """

def checkpoint_first(model, blocks):
    if blocks is None and hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        kinds = {module: [base.__name__ for base in type(module).__mro__] for module in model.modules()}
        layers = [module for module, names in kinds.items() if "GradientCheckpointingLayer" in names]
        for layer in layers[CHECKPOINTED_BLOCKS:]:  #? !order
        for layer in (layers[place] for place in CHECKPOINT_ORDER[CHECKPOINTED_BLOCKS:]):  #? order
            layer.gradient_checkpointing = False
        return
    found = 0 if blocks is None else len(blocks)
    if found < CHECKPOINTED_BLOCKS:  #? !order
    if found != len(CHECKPOINT_ORDER):  #? order
        raise ValueError(f"found {found} blocks, the plan checkpoints {CHECKPOINTED_BLOCKS}: pass blocks=")  #? !order
        raise ValueError(f"found {found} blocks, the plan knows {len(CHECKPOINT_ORDER)}: pass blocks=")  #? order
    for block in list(blocks)[:CHECKPOINTED_BLOCKS]:  #? !order
    for block in [list(blocks)[place] for place in CHECKPOINT_ORDER[:CHECKPOINTED_BLOCKS]]:  #? order
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
"""

_BY_LENGTH = '''

class ByLength:
    """A batch sampler: batches of samples of similar length, others in each epoch. lengths: that of each sample."""

    def __init__(self, lengths, drop_last=False):
        self.lengths, self.sampler, self.drop_last = lengths, RandomSampler(lengths), drop_last

    def __len__(self):
        return len(self.lengths) // MICRO_BATCH_SIZE + bool(len(self.lengths) % MICRO_BATCH_SIZE and not self.drop_last)

    def __iter__(self):
        drawn = list(self.sampler)
        full = len(drawn) // MICRO_BATCH_SIZE
        windows = max(-(-full // 50), min(4, full), 1)
        edges = [full * at // windows * MICRO_BATCH_SIZE for at in range(windows + 1)]
        for first, last in zip(edges, edges[1:]):
            order = sorted(range(first, last), key=lambda place: self.lengths[drawn[place]])
            starts = range(0, last - first, MICRO_BATCH_SIZE)
            for places in sorted(sorted(order[start : start + MICRO_BATCH_SIZE]) for start in starts):
                yield [drawn[place] for place in places]
        if drawn[edges[-1] :] and not self.drop_last:
            yield drawn[edges[-1] :]
'''

_STEPS = '''

def steps(loader):
    """Yields the micro batches of each optimizer step."""  #? summed
    """Yields the micro batches of each optimizer step, each with its number of samples."""  #? !weighted !summed
    """Yields the micro batches of each optimizer step, each with its number of useful entries."""  #? weighted
    batches = []
    for samples, batch in counted(loader):  #? !weighted !summed
        batches.append((samples, batch))  #? !weighted !summed
    for batch in loader:  #? summed
        batches.append(batch)  #? summed
    for batch in loader:  #? weighted
        batches.append((size(batch), batch))  #? weighted
        if len(batches) == ACCUMULATION_STEPS:
            yield batches
            batches = []
    if batches and not getattr(loader, "drop_last", False):
        yield batches
'''

_BY_SAMPLES = '''

class Counting:
    """Collates samples and counts them."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        return len(samples), self.collate(samples)  #? !shapes
        batch = self.collate(samples)  #? shapes
        rows = {tensor.shape[:1] for tensor in tensors(batch)}  #? shapes
        left = rows.pop().numel() if len(rows) == 1 else 0  #? shapes
        return min(len(samples), left or len(samples)), batch  # fewer if damaged samples are dropped  #? shapes


def counted(loader):
    """Yields (number of samples, batch). Ready batches are counted by their shapes."""  #? shapes
    """Yields (number of samples, batch). Ready batches count as 1 each."""  #? !shapes
    if getattr(type(loader), "__iter__", None) is not DataLoader.__iter__ or loader.batch_sampler is None:
        yield from ((size(batch), batch) for batch in loader)  #? shapes
        yield from ((1, batch) for batch in loader)  #? !shapes
        return
    counting = copy.copy(loader)  # the original is not changed
    counting.collate_fn, counting._iterator = Counting(loader.collate_fn), None
    yield from counting
'''

_SHAPES = '''

def size(batch):
    """Returns the length of a list of samples, or the first dimension that most tensors share."""
    held = list(batch.values()) if isinstance(batch, Mapping) else batch
    sizes = [len(tensor) for tensor in tensors(batch) if tensor.dim()]
    if isinstance(held, (list, tuple)):
        if all(isinstance(part, Mapping) for part in held):
            return len(held)
        if len(set(sizes)) > 1 and all(isinstance(part, (list, tuple)) for part in held):
            return len(held[0])  # as many images as targets
    return max(sizes, key=sizes.count)


def tensors(batch):
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        parts = batch.values()
    else:
        parts = batch if isinstance(batch, (list, tuple)) else getattr(batch, "__dict__", {}).values()
    return [tensor for part in parts for tensor in tensors(part)]
'''

_WEIGHTED = '''

def size(batch):
    """Returns the number of entries over which the loss of a batch is a mean."""
    return float((entries that count).sum(dtype=torch.float64))
'''

TO_DEVICE = """

def to_device(batch, device):
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)  #? !channels_last
        layout = torch.channels_last if batch.dim() == 4 else torch.preserve_format  #? channels_last
        return batch.to(device, non_blocking=True, memory_format=layout)  #? channels_last
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict) and type(batch) is not dict:
        moved = copy.copy(batch)
        for key, part in batch.items():
            moved[key] = to_device(part, device)
        if getattr(batch, "__dict__", None) is batch:
            object.__setattr__(moved, "__dict__", moved)
        return moved
    if isinstance(batch, Mapping):
        return {key: to_device(part, device) for key, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [to_device(part, device) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    if hasattr(batch, "__dataclass_fields__"):
        moved = copy.copy(batch)
        for name in batch.__dataclass_fields__:
            object.__setattr__(moved, name, to_device(getattr(batch, name), device))
        return moved
    return batch
"""

HELPERS = {
    "flags": _SET_IMPLEMENTATION,
    "blocks": _CHECKPOINT_FIRST,
    "grouped": _BY_LENGTH,
    "accumulate": _STEPS,
    "by_samples": _BY_SAMPLES,
    "shapes": _SHAPES,
    "weighted": _WEIGHTED,
}
"""Helper functions that each part needs."""


def select(template: str, parts: frozenset[str]) -> str:
    """Returns the lines of `template` that belong to `parts`.

    A line that ends in `#? a !b` is included if `a` is a part and `b` is not.
    """
    lines = []
    for line in template.splitlines():
        code, _, flags = line.partition("  #? ")
        if all((flag.lstrip("!") in parts) != flag.startswith("!") for flag in flags.split()):
            lines.append(code)
    return "".join(f"{line}\n" for line in lines)
