"""Compares the memory of one rank as estimated, rehearsed alone, and measured on real ranks, on a CPU.

Six small architectures train under each layout. The trace runs on fake tensors and a fake process group; the rehearsal
on real tensors and a fake group; the last on two processes, or four in rows, that communicate by gloo, which holds
copies of its own.
Required: trace and rehearsal differ by at most 1 % under every plan of `PROMISED`, `IN_ROWS`, `APART`, `GATHERED` and
`TENSOR`.
"""

import gc
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, distributed, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from autofit import devices
from autofit.core.account import Account
from autofit.core.plan import KnobValue, Plan
from autofit.core.units import format_bytes
from autofit.memory.peak import memory_use
from autofit.memory.trace import Trace
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing import tracing
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.batches import BatchSource
from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, Ranks, StepBatch
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload
from scripts.bench import report
from scripts.bench.ranks.launching import RANKS, launched

WORDS, LENGTH, CLASSES, SIZE = 512, 32, 10, 4
STEPS = 3
CPU = torch.device("cpu")
REQUIRED_RATIO = 0.01
PARTS = 4
"""Number of micro batches of a step that has several, for plans that are promised."""
HYBRID, ROW_RANKS = "hybrid", 4
"""The layout of ranks in rows, and their number."""


class Block(nn.Module):
    """Two layers and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return out


class Residual(nn.Module):
    """Two convolutions and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.two(torch.relu(self.norm(self.one(x))))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 128), *(Block(128) for _ in range(4)), nn.Linear(128, CLASSES))


def convolutions() -> nn.Module:
    blocks = (Residual(32) for _ in range(4))
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)
    )


def llama() -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    model: nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **sizes))
    return model


def qwen3() -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    heads = {"num_key_value_heads": 2, "head_dim": 32}
    model: nn.Module = Qwen3ForCausalLM(Qwen3Config(vocab_size=WORDS, tie_word_embeddings=True, **sizes, **heads))
    return model


def gpt2() -> nn.Module:
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 128, "n_layer": 4, "n_head": 4}
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**sizes, **tokens, **dropouts))
    return model


def bert() -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    model: nn.Module = BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=64, **sizes, **dropouts))
    return model


def vit() -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    model: nn.Module = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **sizes))
    return model


def words(size: int) -> dict[str, Tensor]:
    tokens = torch.randint(1, WORDS, (size, LENGTH))
    return {"input_ids": tokens, "labels": tokens.clone()}


def pictures(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size, 3, 32, 32), "labels": torch.randint(0, CLASSES, (size,))}


def rows(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 32), torch.randint(0, CLASSES, (size,))


def images(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 16, 16), torch.randint(0, CLASSES, (size,))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "llama": (llama, words),
    "gpt2": (gpt2, words),
    "bert": (bert, words),
    "vit": (vit, pictures),
    "convolutions": (convolutions, images),
    "mlp": (mlp, rows),
}
WITH_PLAN: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "llama": (llama, words),
    "qwen3": (qwen3, words),
}
"""Models that declare how their layers are divided; that of Qwen3 also has tied weights and sums of gradients."""
PROMISED: Mapping[str, Mapping[str, KnobValue]] = {
    "replicated": {"layout": "replicated"},
    "replicated, views": {"layout": "replicated", "gradient_as_bucket_view": True},
    "replicated, looking": {"layout": "replicated", "find_unused_parameters": True},
    "optimizer": {"layout": "optimizer"},
    "full": {"layout": "full"},
    "full, looking": {"layout": "full", "find_unused_parameters": True},
    "full, kept": {"layout": "full", "reshard_after_forward": False},
}
IN_ROWS: Mapping[str, Mapping[str, KnobValue]] = {
    "hybrid": {"layout": HYBRID},
    "hybrid, kept": {"layout": HYBRID, "reshard_after_forward": False},
}
"""Promised plans of `ROW_RANKS` ranks, in rows of two."""
APART: Mapping[str, Mapping[str, KnobValue]] = {
    "full, apart": {"layout": "full", "accumulation_steps": PARTS, "sync_each_batch": False},
    "full, kept, apart": {**PROMISED["full, kept"], "accumulation_steps": PARTS, "sync_each_batch": False},
    "hybrid, apart": {"layout": HYBRID, "accumulation_steps": PARTS, "sync_each_batch": False},
}
"""Promised plans that exchange gradients after the last micro batch of a step."""
OTHERS: Mapping[str, Mapping[str, KnobValue]] = {
    "full, checkpointed": {"layout": "full", "checkpointed_blocks": 4},
    "full, accumulated": {"layout": "full", "accumulation_steps": 2},
    "full, bf16": {"layout": "full", "precision": "bf16"},
}
"""Plans without a promise, which are shown beside the others."""
GATHERED: Mapping[str, Mapping[str, KnobValue]] = {
    "full, in bf16": {"layout": "full", "gather_precision": "bf16"},
    "full, kept in bf16": {"layout": "full", "gather_precision": "bf16", "reshard_after_forward": False},
    "full, apart, in bf16": {**APART["full, apart"], "gather_precision": "bf16"},
    "full, autocast too": {"layout": "full", "gather_precision": "bf16", "precision": "bf16"},
}
"""Promised plans that compute in another format, for models without batch normalisation."""
TENSOR: Mapping[str, Mapping[str, KnobValue]] = {
    "tensor": {"layout": "tensor"},
    "tensor, accumulated": {"layout": "tensor", "accumulation_steps": 2},
    "tensor, bf16": {"layout": "tensor", "precision": "bf16"},
}
"""Promised plans of `WITH_PLAN`."""
NORMALISED = ("convolutions",)
"""Models with batch normalisation."""


def plan_of(values: Mapping[str, KnobValue]) -> Plan:
    return Plan(values={"micro_batch_size": SIZE, "accumulation_steps": 1, **values})


def ranks_of(plan: Plan) -> int:
    """Returns the number of ranks with which a plan is compared."""
    return ROW_RANKS if plan.values["layout"] == HYBRID else RANKS


def opened(model: str, size: int = SIZE) -> tuple[Workload, BatchSource]:
    """Returns a workload with the same weights and batches at each call."""
    make, batch = {**MODELS, **WITH_PLAN}[model]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss_fn = nn.CrossEntropyLoss() if isinstance(batch(1), tuple) else None
        data = [batch(size) for _ in range(2)]
        workload = Workload(
            make(), data, loss_fn=loss_fn, optimizer=lambda ps: torch.optim.AdamW(ps, 1e-3, foreach=True)
        )
    workload.set_mode()
    return workload, source_of(workload.loader)


def traced(model: str, plan: Plan, ranks: int = RANKS) -> Trace:
    """Returns the trace of a plan, of the rank that needs the most memory."""
    workload, source = opened(model)
    loss = loss_of(workload, source, CPU)
    return tracing.trace(workload, loss, plan, source.worst(plan.micro_batch_size), CPU, ranks=ranks)


def estimated_bytes(model: str, plan: Plan, ranks: int = RANKS) -> int:
    """Returns the peak of live tensors by the trace."""
    trace = traced(model, plan, ranks)
    return memory_use(trace, Account(allocator="host"), accumulation_steps=plan.accumulation_steps).allocated_bytes


def measured_bytes(model: str, plan: Plan, ranks: Ranks) -> int:
    """Returns the peak of live tensors in a few steps of this rank, by the allocation record.

    Whole parameters beside sharded ones do not count, as if the model had been sharded before it was on the device.
    """
    workload, source = opened(model)
    draft = Draft.of(workload, loss_of(workload, source, CPU), CPU)
    draft.ranks, batch = ranks, source.worst(plan.micro_batch_size)
    workload.model.zero_grad(set_to_none=True)
    with prepare(plan, draft, members()) as step:
        undivided = {id(parameter) for parameter in step.model.parameters()}
    held = [*workload.model.buffers(), *(each for each in workload.model.parameters() if id(each) in undivided)]
    before = sum(tensor.nbytes for tensor in held)
    gc.collect()
    with ExitStack() as closing, devices.choose("cpu").meter(lambda: before) as reading:
        step = closing.enter_context(prepare(plan, draft, members()))
        for _ in range(STEPS):
            step(StepBatch.alike([map_tensors(batch, torch.clone) for _ in range(plan.accumulation_steps)]))
    assert reading.memory is not None, "it is set when the meter stops"
    return reading.memory.allocated_bytes


def rehearsed_bytes(model: str, plan: Plan, ranks: int = RANKS, number: int = 0) -> int:
    """Returns the peak of one rank's steps on real tensors, without the other ranks."""
    with fake_ranks(ranks, number) as alone:
        return measured_bytes(model, plan, alone)


def measured_one_by_one(ranks: Ranks, model: str, plans: list[Plan]) -> list[int]:
    """Returns the peak of this rank under each plan."""
    found = []
    ranks = ranks.in_rows(distributed.new_group) if ranks.count == ROW_RANKS else ranks
    for plan in plans:
        distributed.barrier()
        found.append(measured_bytes(model, plan, ranks))
    return found


def compare(model: str, plans: Mapping[str, Mapping[str, KnobValue]]) -> list[dict[str, Any]]:
    """Returns the three peaks of each plan; the rehearsal and the real ranks give those of their worst rank."""
    counts = {name: ranks_of(plan_of(values)) for name, values in plans.items()}
    real = dict[str, int]()
    for count in dict.fromkeys(counts.values()):
        names = [name for name in plans if counts[name] == count]
        peaks = launched(measured_one_by_one, model, [plan_of(plans[name]) for name in names], ranks=count)
        real |= {name: max(each[place] for each in peaks) for place, name in enumerate(names)}
    found = []
    for name, values in plans.items():
        plan, count = plan_of(values), counts[name]
        rehearsed = max(rehearsed_bytes(model, plan, count, number) for number in range(count))
        began = perf_counter()
        estimated = estimated_bytes(model, plan, count)
        found.append({
            "model": model, "plan": name, "promised": name not in OTHERS, "seconds": perf_counter() - began,
            "estimated_bytes": estimated, "rehearsed_bytes": rehearsed, "error_ratio": estimated / rehearsed - 1,
            "gloo_bytes": real[name],
        })  # fmt: skip
    return found


def main() -> None:
    parser = report.parser(__doc__ or "")
    known = list({**MODELS, **WITH_PLAN})
    parser.add_argument("models", nargs="*", default=known, help=f"some of {', '.join(known)}; all by default")
    given = parser.parse_args()
    if unknown := set(given.models) - set(known):
        parser.error(f"found the models {', '.join(sorted(unknown))}; expected some of {', '.join(known)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cases = []
    print(f"{'model':14s}{'plan':20s}{'trace':>12s}{'rehearsal':>12s}{'':>9s}{'gloo':>12s}{'':>9s}")
    for model in given.models:
        plans = {**PROMISED, **IN_ROWS, **APART, **({} if model in NORMALISED else GATHERED), **OTHERS}
        for case in compare(model, {**(plans if model in MODELS else {}), **(TENSOR if model in WITH_PLAN else {})}):
            cases.append(case)
            sizes = [format_bytes(case[f"{how}_bytes"]) for how in ("estimated", "rehearsed", "gloo")]
            beside = case["gloo_bytes"] / case["rehearsed_bytes"] - 1
            print(
                f"{model:14s}{case['plan']:20s}{sizes[0]:>12s}{sizes[1]:>12s}{case['error_ratio']:>+9.2%}{sizes[2]:>12s}"
                f"{beside:>+9.2%}",
                flush=True,
            )
    promised = [abs(case["error_ratio"]) for case in cases if case["promised"]]
    others = [abs(case["error_ratio"]) for case in cases if not case["promised"]]
    passed = max(promised) <= REQUIRED_RATIO
    summary = (
        f"ranks: {len(promised)} promised cases, worst {max(promised):.2%} (required {REQUIRED_RATIO:.0%}); "
        f"{len(others)} others, worst {max(others):.2%}: {'ok' if passed else 'MISSED'}"
    )
    report.finish(summary, {"cases": cases}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
