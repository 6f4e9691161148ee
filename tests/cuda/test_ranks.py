"""The memory of one of several ranks by its trace, against the CUDA allocator in the same steps without the others."""

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.core.plan import Plan
from autofit.memory.peak import MemoryUse, memory_use
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing import tracing
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload

pytest.importorskip("transformers")
from scripts.bench.memory.ranks import APART, GATHERED, MODELS, NORMALISED, PROMISED, opened, plan_of

WIDTH, CLASSES, SIZE, RANKS = 512, 1000, 256, 8
CLOSE_SEGMENTS = 0.1
"""The rehearsal also holds the whole weights, among whose segments others lie differently. Found: -7 % to +4 %, and
-9 % or less than one segment of 20 MiB for weights in bfloat16. As if all memory were of one stream, `full` was 20 %
too low."""
PLANS: list[dict[str, Any]] = [
    {"layout": "replicated"},
    {"layout": "replicated", "gradient_as_bucket_view": True},
    {"layout": "optimizer"},
    {"layout": "full"},
    {"layout": "full", "reshard_after_forward": False},
    {"layout": "full", "gather_precision": "bf16"},
    {"layout": "full", "gather_precision": "bf16", "reshard_after_forward": False, "precision": "bf16"},
]
LAYOUTS = {**PROMISED, "full, apart": APART["full, apart"], "full, in bf16": GATHERED["full, in bf16"]}
ARCHITECTURES = [each for each in MODELS if each != "mlp"]
"""That one is above, with larger layers. With 2 MB of weights, its traces of `replicated` are 2 % (0.7 MB) too low:
buckets get blocks that the allocator does not split for a remainder below 1 MiB, and the reducer makes new ones in the
second step."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return out


def workload() -> Workload:
    model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(WIDTH, CLASSES)).cuda()
    data = [(torch.randn(SIZE, WIDTH), torch.randint(0, CLASSES, (SIZE,))) for _ in range(2)]
    made = Workload(model, data, loss_fn=nn.CrossEntropyLoss(), optimizer=torch.optim.AdamW)
    made.set_mode()
    return made


def peaks(made: Workload, plan: Plan) -> tuple[MemoryUse, int, int]:
    """Returns the memory of one of `RANKS` ranks by its trace, and by the allocator: allocated and reserved bytes.

    Whole parameters beside sharded ones do not count.
    """
    device, source = devices.choose("cuda"), source_of(made.loader)
    batch, loss = source.worst(plan.micro_batch_size), loss_of(made, source, device.torch_device)
    account = device.account()
    assert account is not None
    trace = tracing.trace(made, loss, plan, batch, device.torch_device, ranks=RANKS)
    use = memory_use(trace, account, accumulation_steps=plan.accumulation_steps)
    made.model.zero_grad(set_to_none=True)
    whole = sum(p.nbytes for p in made.model.parameters()) if plan.values["layout"] == "full" else 0
    draft = Draft.of(made, loss, device.torch_device)
    number = max(each.heaviest_rank(plan, draft.optimizer, RANKS) for each in members() if draft.optimizer is not None)
    with fake_ranks(RANKS, number, "cuda") as draft.ranks, prepare(plan, draft, members()) as step:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step(StepBatch.alike([map_tensors(batch, torch.clone) for _ in range(plan.accumulation_steps)]))
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return use, allocated - whole, reserved - whole


@pytest.mark.parametrize("values", PLANS, ids=str)
def test_a_trace_is_close_to_the_allocator(values: dict[str, Any]) -> None:
    plan = Plan(values={"micro_batch_size": SIZE, "accumulation_steps": 1, **values})
    use, allocated, reserved = peaks(workload(), plan)
    assert use.reserved_bytes is not None
    assert use.allocated_bytes == pytest.approx(allocated, rel=0.01)
    assert use.reserved_bytes == pytest.approx(reserved, rel=CLOSE_SEGMENTS)


@pytest.mark.parametrize("layout", ["replicated", "full"])
def test_a_batch_norm_over_all_ranks_is_traced(layout: str) -> None:
    """Its statistics are exchanged on the default process group."""
    convolutions = [nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(model).cuda()  # type: ignore[no-untyped-call]
    data = [(torch.randn(64, 64, 32, 32), torch.randint(0, CLASSES, (64,))) for _ in range(2)]
    made = replace(workload(), model=synced, loader=data)
    made.set_mode()
    plan = Plan(values={"micro_batch_size": 64, "accumulation_steps": 1, "layout": layout})
    use, allocated, _ = peaks(made, plan)
    assert use.allocated_bytes == pytest.approx(allocated, rel=0.01)


@pytest.mark.parametrize(
    ("model", "name"),
    [(model, name) for model in ARCHITECTURES for name in LAYOUTS if name not in GATHERED or model not in NORMALISED],
)
def test_so_it_is_for_each_architecture(model: str, name: str) -> None:
    made, _ = opened(model)
    made.model.cuda()
    use, allocated, _ = peaks(made, plan_of(LAYOUTS[name]))
    assert use.allocated_bytes == pytest.approx(allocated, rel=0.01)
