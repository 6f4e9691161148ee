import gc
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.optim import optimizer as torch_optimizer

from autofit.core.errors import SpaceError, Untraceable
from autofit.core.plan import Plan
from autofit.devices.cpu import Cpu
from autofit.memory.trace import Kind, Trace
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.tracing.recorder import Recorder
from autofit.tracing.tracing import trace
from autofit.workloads.first_loss import resolve_forward
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, static_bytes
from autofit.workloads.workload import Workload
from tests.tracing.test_fake_copy import digest
from tests.tracing.tiny import Asking, Cnn, Gpt, images, words, workload

CPU = torch.device("cpu")


def plan(size: int = 4, **values: bool | int | str) -> Plan:
    return Plan(values={"micro_batch_size": size, **values})


def traced(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], wanted: Plan, **more: object) -> Trace:
    made, rule = workload(model, batch, **more)
    return trace(made, rule, wanted, batch, CPU)


def peaks(found: Trace) -> dict[str, int]:
    marks = {mark.event: mark.name for mark in found.marks}
    now, name, most = 0, "before", Counter[str]()
    for place, event in enumerate(found.events):
        name = marks.get(place, name)
        now += found.tensors.sizes[event] if event >= 0 else -found.tensors.sizes[~event]
        most[name] = max(most[name], now)
    return dict(most)


def measured(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], wanted: Plan) -> int:
    """Returns the peak of live tensors over two real steps."""
    made, rule = workload(model, batch)
    draft = Draft(model=model, loss=rule, optimizer=made.make_optimizer(), device=CPU)
    with prepare(wanted, draft, members()) as step, Cpu().meter(lambda: static_bytes(step)) as reading:
        for _ in range(2):
            step(StepBatch.of([tuple(t.clone() for t in batch)] * 1))
    assert reading.memory is not None
    return reading.memory.allocated_bytes


@pytest.mark.parametrize(
    "values",
    [{}, {"precision": "bf16"}, {"checkpointed_blocks": 2}, {"optimizer_implementation": "foreach"}],
    ids=["as it is", "bf16", "checkpointed", "foreach"],
)
def test_a_trace_has_the_peak_of_the_real_steps(values: dict[str, Any]) -> None:
    model, batch = Gpt(), words(4)
    expected = measured(model, batch, plan(**values))
    assert max(peaks(traced(Gpt(), batch, plan(**values))).values()) == pytest.approx(expected, rel=0.02)


def test_a_convolutional_network_too() -> None:
    # oneDNN takes buffers that no trace sees: one probe gives them.
    expected = measured(Cnn(), images(4), plan())
    assert 0.75 * expected < max(peaks(traced(Cnn(), images(4), plan())).values()) <= expected


def test_marks_name_the_phases_of_three_steps() -> None:
    found = traced(Gpt(), words(4), plan())
    steps = [f"step {n} {phase}" for n in (1, 2, 3) for phase in ("forward", "backward", "optimizer")]
    assert [mark.name for mark in found.marks] == [*steps, "end"]
    assert [mark.event for mark in found.marks] == sorted(mark.event for mark in found.marks)
    assert found.marks[-1].event == len(found.events)


def test_what_is_put_back_at_the_end_is_no_part_of_a_trace() -> None:
    found = traced(Cnn(), images(4), plan(memory_format="channels_last"))
    assert found.marks[-1].event == len(found.events)


def test_two_of_many_micro_batches_are_traced() -> None:
    found = traced(Gpt(), words(4), plan(accumulation_steps=8))
    names = [mark.name for mark in found.marks]
    assert names[:5] == ["step 1 forward", "step 1 backward"] * 2 + ["step 1 optimizer"]


def test_every_allocation_is_released_at_most_once_and_static_memory_stays() -> None:
    model = Gpt()
    found = traced(model, words(4), plan())
    assert max(Counter(found.events).values()) == 1
    alive = {e for e in found.events if e >= 0} - {~e for e in found.events if e < 0}
    kept = Counter(found.tensors.kinds[handle] for handle in alive)
    assert set(kept) == {Kind.PARAMETER, Kind.OPTIMIZER_STATE}
    parameters = sum(p.nbytes for p in model.parameters())
    states = sum(found.tensors.sizes[h] for h in alive if found.tensors.kinds[h] is Kind.OPTIMIZER_STATE)
    assert states == 2 * parameters + 4 * len(list(model.parameters()))  # two moments, and counters


def test_kinds_and_origins() -> None:
    model = Cnn()
    found = traced(model, images(4), plan())
    by_kind: dict[Kind, list[int]] = {}
    for kind, size in zip(found.tensors.kinds, found.tensors.sizes, strict=True):
        by_kind.setdefault(kind, []).append(size)
    assert sorted(by_kind[Kind.PARAMETER]) == sorted(p.nbytes for p in model.parameters())
    assert sorted(by_kind[Kind.BUFFER]) == sorted(b.nbytes for b in model.buffers())
    assert Counter(by_kind[Kind.GRADIENT]) == Counter([p.nbytes for p in model.parameters()] * 3)
    assert 4 * 3 * 16 * 16 * 4 in by_kind[Kind.BATCH]
    owners = {
        found.modules[origin]
        for origin, kind in zip(found.tensors.origins, found.tensors.kinds, strict=True)
        if origin >= 0 and kind is Kind.ACTIVATION
    }
    assert {"stem", "blocks.0.conv", "blocks.1.norm"} <= owners


def test_checkpointing_keeps_fewer_activations() -> None:
    def kept(found: Trace) -> int:
        pairs = zip(found.tensors.kinds, found.tensors.sizes, strict=True)
        return sum(size for kind, size in pairs if kind is Kind.ACTIVATION)

    whole, saved = traced(Gpt(), words(4), plan()), traced(Gpt(), words(4), plan(checkpointed_blocks=2))
    assert kept(saved) < kept(whole) / 2


def test_sizes_are_affine_in_the_batch() -> None:
    two, three, seven = (traced(Gpt(), words(2), plan(size)) for size in (2, 3, 7))
    assert two.events == three.events == seven.events
    for a, b, c in zip(two.tensors.sizes, three.tensors.sizes, seven.tensors.sizes, strict=True):
        assert c == a + 5 * (b - a)
    assert seven.micro_batch_size == 7


def test_traces_repeat() -> None:
    assert traced(Cnn(), images(4), plan()) == traced(Cnn(), images(4), plan())


def test_nothing_of_the_users_changes() -> None:
    model, batch = Cnn(), images(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, random, state = digest(model), torch.get_rng_state(), optimizer.state_dict()
    types = list(torch_optimizer._foreach_supported_types)
    functions = F.linear, F.scaled_dot_product_attention
    traced(model, batch, plan(memory_format="channels_last", precision="bf16"), optimizer=optimizer)
    assert digest(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert optimizer.state_dict() == state
    assert all(p.grad is None and not isinstance(p, FakeTensor) for p in model.parameters())
    assert torch_optimizer._foreach_supported_types == types
    assert (F.linear, F.scaled_dot_product_attention) == functions
    assert gc.isenabled()


def test_a_scaled_step_updates_although_its_scale_depends_on_data() -> None:
    found = traced(Gpt(), words(4), plan(precision="fp16"))
    assert Kind.OPTIMIZER_STATE in found.tensors.kinds
    assert found.answered == 0


def test_inference_is_one_forward_pass_a_step() -> None:
    model, batch = Gpt(), words(4)
    made = Workload(model, [batch], mode="inference")
    found = trace(made, resolve_forward(batch, None), plan(), batch, CPU)
    assert {mark.name for mark in found.marks} == {"step 1 forward", "step 2 forward", "step 3 forward", "end"}
    assert not {Kind.GRADIENT, Kind.OPTIMIZER_STATE} & set(found.tensors.kinds)


class Remembering(Gpt):
    """Keeps something of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = super().forward(ids)
        self.seen.append(x.detach().sum(0))
        return x


def test_the_third_step_is_as_if_it_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = traced(Gpt(dropout=0.1), words(4), plan(checkpointed_blocks=1, accumulation_steps=2))
    monkeypatch.setattr(Recorder, "repeat", lambda self, begin: False)
    assert traced(Gpt(dropout=0.1), words(4), plan(checkpointed_blocks=1, accumulation_steps=2)) == copied


def test_a_step_that_keeps_something_is_not_taken_for_the_next() -> None:
    found = traced_by(Remembering())
    begun = {mark.name: mark.event for mark in found.marks}
    kept = 48 * 96 * 4
    for step in ("step 2", "step 3"):
        alive = set[int]()
        for event in found.events[: begun[f"{step} optimizer"]]:
            alive ^= {event if event >= 0 else ~event}
        held = [found.tensors.sizes[handle] for handle in alive if found.tensors.kinds[handle] is Kind.ACTIVATION]
        assert held.count(kept) == int(step[-1])


def test_a_condition_on_values_is_answered_and_counted() -> None:
    found = traced_by(Asking("finite"))
    assert found.answered == 3
    assert "depend on data" in found.notes[0]


def traced_by(model: nn.Module) -> Trace:
    batch = words(2)
    made = Workload(model, [batch], loss_fn=F.cross_entropy)
    rule = LossRule("loss_fn", lambda m, b: F.cross_entropy(m(b[0]), b[1]), False, "")
    return trace(made, rule, plan(2), batch, CPU)


def test_a_plan_that_cannot_be_applied_is_no_failure_of_tracing() -> None:
    with pytest.raises(SpaceError, match="checkpointed_blocks"):
        traced(Gpt(), words(4), plan(checkpointed_blocks=99))


def test_after_a_failure_everything_is_put_back() -> None:
    model, random = Asking("length"), torch.get_rng_state()
    with pytest.raises(Untraceable):
        traced_by(model)
    assert torch.equal(torch.get_rng_state(), random)
    assert FakeTensor not in torch_optimizer._foreach_supported_types
    assert gc.isenabled()
    assert torch.ones(2).sum().item() == 2
