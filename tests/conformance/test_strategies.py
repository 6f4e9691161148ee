"""One suite over every strategy: what it offers, that it applies, and that it leaves no trace but training."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from typing import Any, cast, get_args
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from autofit import devices
from autofit.core.errors import SpaceError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.space import Effect
from autofit.devices.base import Capability
from autofit.prepare import batches_of, prepare
from autofit.strategies import members
from autofit.strategies.base import Facts, Numerics, Strategy
from autofit.tracing.tracing import rehearse
from autofit.workloads.batch_algebra import split
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.workload import Workload
from tests.fakes.decoders import Classifier
from tests.workloads.loaders import Texts, pad
from tests.workloads.ragged import text_lengths


def _capabilities_of_the_host() -> frozenset[str]:
    """Returns the capabilities that the host offers on a chip with every feature, and fp16, which it emulates."""
    host = next(member for member in devices.members() if member.is_host)
    chip = {str(capability): True for capability in Capability}
    with patch("torch.cpu.get_capabilities", lambda: chip, create=True):
        return host().capabilities() | {Capability.FP16}


EVERY_CAPABILITY = frozenset(str(capability) for capability in Capability)
"""The capabilities that any device may offer: offers are made for all of them."""
HOST_CAPABILITIES = _capabilities_of_the_host()
"""The capabilities that the host may offer: training steps run on it, for values that need no others."""

SAMPLES = 4
TEXTS = source_of(DataLoader(Texts(text_lengths(96)), SAMPLES, shuffle=True, collate_fn=pad))
"""Batches that vary in length. The steps of the tests below run on other batches."""


@pytest.fixture(autouse=True)
def compiled_code_runs_uncompiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has torch.compile run what it is given as it is: compiling each value for each workload would take minutes.

    tests/strategies/test_compilation.py compiles.
    """
    monkeypatch.delenv("CXX")
    with torch.compiler.set_stance("force_eager"):
        yield


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.mix(self.norm(hidden)).unsqueeze(1).chunk(3, dim=-1)
        output: torch.Tensor = hidden + self.out(F.scaled_dot_product_attention(queries, keys, values).squeeze(1))
        return output


class Transformer(nn.Module):
    """Written by hand, with a buffer that no state_dict has, and a hook of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.head = nn.Linear(8, 11)
        self.register_buffer("positions", torch.linspace(0, 1, 5).view(1, 5, 1), persistent=False)
        self.positions: torch.Tensor
        self.blocks[0].register_forward_hook(_own_hook)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        output: torch.Tensor = self.head(hidden).mean(dim=1)
        return output


def _own_hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    """A hook of the user's that does nothing."""


def mlp() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 11))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randn(SAMPLES, 6)


def convolutions() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 1),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 11),
    )
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05, momentum=0.9)
    return model, optimizer, torch.randn(SAMPLES, 3, 6, 6)


def transformer() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = Transformer()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    # The keys' bias has no gradient but rounding errors, which a small eps would blow up.
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.1}, {"params": others}]
    optimizer = torch.optim.Adam(groups, lr=0.01, eps=1e-3)
    return model, optimizer, torch.randint(0, 11, (SAMPLES, 5))


def many_classes() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = nn.Sequential(nn.Embedding(11, 8), nn.Tanh(), nn.Flatten(), nn.Linear(5 * 8, 1024))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), torch.randint(0, 11, (SAMPLES, 5))


def wide() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    layers = (nn.Sequential(nn.Linear(16, 1040), nn.Tanh(), nn.Linear(1040, 16)) for _ in range(2))
    model = nn.Sequential(nn.Linear(6, 16), *layers, nn.Linear(16, 11))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), torch.randn(SAMPLES, 6)


def decoder() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model, tokens = Classifier(11), torch.randint(1, 11, (SAMPLES, 5))
    model.decoder.set_attn_implementation("eager")
    tokens[1:3, 2:] = tokens[3:, 1:] = 0  # texts of 5, 2, 2 and 1 tokens, which fit into two rows
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3), tokens


WORKLOADS: dict[str, Callable[[], tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]]] = {
    "mlp": mlp,
    "convolutions": convolutions,
    "transformer": transformer,
    "many classes": many_classes,
    "wide": wide,
    "decoder": decoder,
}
OFFERED = {
    "mlp": ("precision optimizer_implementation optimizer_in_backward length_grouping compilation batching"),
    "convolutions": (
        "memory_format precision optimizer_implementation optimizer_in_backward length_grouping compilation batching"
    ),
    "transformer": (
        "precision optimizer_implementation optimizer_in_backward length_grouping compilation checkpointing batching"
    ),
    "many classes": (
        "precision optimizer_implementation optimizer_in_backward "
        "linear_cross_entropy length_grouping compilation batching"
    ),
    "wide": (
        "precision optimizer_implementation optimizer_in_backward length_grouping compilation checkpointing batching"
    ),
    "decoder": (
        "precision optimizer_implementation optimizer_in_backward attention packing length_grouping compilation "
        "checkpointing batching"
    ),
}
"""The members that offer more than a default for each workload, on a host."""
RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")


def applied(member: Strategy, plan: Plan, draft: Draft) -> contextlib.AbstractContextManager[None]:
    """Applies a member as `prepare` does."""
    return member.apply(plan, draft) if member.acts(plan) else contextlib.nullcontext()


class Case:
    """A workload that has run one step, so that there are momenta and counters, with its facts."""

    def __init__(self, make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]]) -> None:
        torch.manual_seed(0)
        self.model, self.optimizer, inputs = make()
        self.batch = (inputs, torch.randint(0, 11, (SAMPLES,)))
        self.draft = Draft(self.model, RULE, self.optimizer, torch.device("cpu"))
        prepare(Plan(), self.draft, [])(self.batch)

    def facts(self, numerics: Numerics = "any", capabilities: frozenset[str] = HOST_CAPABILITIES) -> Facts:
        return Facts(
            model=self.model,
            batch=self.batch,
            optimizer=self.draft.optimizer,
            device_type="cpu",
            capabilities=capabilities,
            numerics=numerics,
            training=self.draft.optimizer is not None,
            micro_batch_size=SAMPLES,
            global_batch_size=SAMPLES if self.draft.optimizer else None,
            source=TEXTS,
            own_process=True,
            rehearse=partial(rehearse, Workload(self.model, [self.batch]), RULE, Counted(self.batch, SAMPLES)),
        )

    def step_batch(self, plan: Plan) -> StepBatch:
        size = int(plan.values.get(MICRO_BATCH_SIZE, SAMPLES))
        return StepBatch.of(split(self.batch, [size] * (SAMPLES // size)))


def offered(member: Strategy, facts: Facts) -> list[Plan]:
    """Returns a plan for each offered value, the batch complete where it is what the strategy owns."""
    plans = []
    offer = member.offer(facts)
    for knob in offer.knobs:
        for value in knob.values:
            values: dict[str, KnobValue] = {knob.name: value}
            if knob.name in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS) and facts.training:
                other = ACCUMULATION_STEPS if knob.name == MICRO_BATCH_SIZE else MICRO_BATCH_SIZE
                values[other] = SAMPLES // int(value)
            plans.append(Plan(values=values))
    return list(dict.fromkeys(plans))


def defaults(facts: Facts) -> Plan:
    return Plan(values={knob.name: knob.default for member in members() for knob in member.offer(facts).knobs})


def tensors_of(case: Case) -> dict[str, torch.Tensor]:
    state = case.optimizer.state.items()
    named = chain(case.model.named_parameters(), case.model.named_buffers())
    return {
        **dict(named),
        **{f"{id(p)} {key}": value for p, slots in state for key, value in slots.items() if value is not None},
    }


def everything_but_values(case: Case) -> dict[str, Any]:
    """Returns what a strategy must put back: attributes, hooks, layouts, identities, draft, groups, global state."""
    return {
        "modules": {name: _attributes(module) for name, module in case.model.named_modules()},
        "tensors": {
            name: (id(tensor), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad)
            for name, tensor in tensors_of(case).items()
        },
        "draft": {field.name: getattr(case.draft, field.name) for field in fields(case.draft)},
        "groups": [
            {key: value for key, value in group.items() if key != "params"} for group in case.optimizer.param_groups
        ],
        "group objects": [(id(group), *map(id, group["params"])) for group in case.optimizer.param_groups],
        "optimizer": (dict(case.optimizer.defaults), sorted(vars(case.optimizer))),
        "process": (
            torch.is_autocast_enabled("cpu"),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
        ),
    }


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Returns the attributes of a module; dictionaries (parameters, hooks, children) by the identity of entries."""
    return {
        name: {key: id(item) for key, item in value.items()} if isinstance(value, dict) else value
        for name, value in vars(module).items()
    }


def values_of(case: Case) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors_of(case).items()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value.flatten().view(torch.uint8), other[name].flatten().view(torch.uint8))
        for name, value in one.items()
        if value.numel()
    )


each_member = pytest.mark.parametrize("member", members(), ids=lambda member: member.name)
each_workload = pytest.mark.parametrize("workload", WORKLOADS)
INEXACT = {"precision", "packing", "length_grouping"}
IN_INFERENCE = {"memory_format", "precision", "attention", "compilation", "batching"}
"""The members that offer nothing at `numerics="exact"`, and those that offer something in inference."""


def offering(names: set[str]) -> pytest.MarkDecorator:
    """Returns the mark for each workload with each member that offers something for it, of those named."""
    found = [
        pytest.param(workload, member, id=f"{workload}-{member.name}")
        for workload, offered_there in OFFERED.items()
        for member in members()
        if member.name in names.intersection(offered_there.split())
    ]
    return pytest.mark.parametrize(("workload", "member"), found)


EVERY = {name for names in OFFERED.values() for name in names.split()}


def some(plans: list[Plan]) -> list[Plan]:
    """Returns the plans; skips the test if a library that they need is not installed."""
    if not plans:
        pytest.skip("a library of this strategy is not installed")
    return plans


def test_names_are_unique() -> None:
    assert len({member.name for member in members()}) == len(members())
    owned = [name for member in members() for name in member.owns]
    assert len(set(owned)) == len(owned)


@each_member
def test_member_says_what_it_does_what_it_costs_and_whether_results_change(member: Strategy) -> None:
    for phrase in (member.about, member.cost):
        assert phrase
        assert phrase == phrase.strip(" .")
    assert member.effect in get_args(Effect)


@each_member
def test_member_shows_what_it_can_on_at_least_one_workload(member: Strategy) -> None:
    """Without this the tests below could pass by never being offered anything."""
    cases = [Case(make) for make in WORKLOADS.values()]
    ranks = 2 if member.for_ranks else 1
    facts = [replace(case.facts(capabilities=EVERY_CAPABILITY), ranks=ranks) for case in cases]
    missing = {r.reason for one in facts for r in member.offer(one).refused if "is not installed" in r.reason}
    plans = [plan for one in facts for plan in offered(member, one)]
    if missing and not plans:
        pytest.skip(f"{member.name}: {'; '.join(sorted(missing))}")
    assert len(plans) > 1


@each_member
@each_workload
def test_offer_is_well_formed_and_changes_nothing(member: Strategy, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    before, values, random = everything_but_values(case), values_of(case), torch.get_rng_state()
    offer = member.offer(case.facts(capabilities=EVERY_CAPABILITY))
    assert offer.knobs or offer.refused
    assert {knob.name for knob in offer.knobs} <= set(member.owns)
    for knob in offer.knobs:
        assert knob.admits(knob.default)
        assert len(set(knob.values)) == len(knob.values)
        assert knob.about
        assert not member.same_memory or set(knob.values) <= {knob.default, *knob.same_memory}
    assert all(refusal.name and refusal.reason for refusal in offer.refused)
    assert everything_but_values(case) == before
    assert same_bits(values_of(case), values)
    assert torch.equal(torch.get_rng_state(), random)


@each_member
@each_workload
def test_device_without_capabilities_gives_reasons_and_no_error(member: Strategy, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    bare = member.offer(case.facts(capabilities=frozenset()))
    assert bare.knobs or bare.refused
    full = member.offer(case.facts(capabilities=EVERY_CAPABILITY))
    kept = {(knob.name, value) for knob in bare.knobs for value in knob.values}
    lost = {(knob.name, value) for knob in full.knobs for value in knob.values} - kept
    assert bool(lost) <= bool(bare.refused)


@each_member
@each_workload
def test_plan_that_names_no_knob_of_the_member_changes_nothing(member: Strategy, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    before, values = everything_but_values(case), values_of(case)
    with applied(member, Plan(values={"of_somebody_else": 1}), case.draft):
        assert everything_but_values(case) == before
    assert everything_but_values(case) == before
    assert same_bits(values_of(case), values)


@each_workload
def test_plan_of_all_defaults_changes_nothing(workload: str) -> None:
    case, untouched = Case(WORKLOADS[workload]), Case(WORKLOADS[workload])
    before, values = everything_but_values(case), values_of(case)
    with prepare(defaults(case.facts()), case.draft, members()) as step:
        assert everything_but_values(case) == before
        assert same_bits(values_of(case), values)
        loss = step(case.batch)
    assert everything_but_values(case) == before
    assert torch.equal(loss, prepare(Plan(), untouched.draft, [])(untouched.batch))
    for one, other in zip(case.model.parameters(), untouched.model.parameters(), strict=True):
        assert torch.equal(one, other)


@offering(EVERY)
def test_every_offered_value_trains_and_leaves_no_trace(member: Strategy, workload: str) -> None:
    for plan in some(offered(member, Case(WORKLOADS[workload]).facts())):
        case = Case(WORKLOADS[workload])
        before, values = everything_but_values(case), values_of(case)
        with prepare(plan, case.draft, members()) as step:
            loss = step(case.step_batch(plan))
        assert loss.isfinite(), plan
        assert everything_but_values(case) == before, plan
        assert not same_bits(values_of(case), values), plan


@each_member
@each_workload
def test_value_that_the_host_does_not_offer_leaves_no_trace_on_it(member: Strategy, workload: str) -> None:
    """The host may refuse it, as a value for another device."""
    case = Case(WORKLOADS[workload])
    before, values = everything_but_values(case), values_of(case)
    of_the_host = offered(member, case.facts())
    for plan in offered(member, case.facts(capabilities=EVERY_CAPABILITY)):
        if plan not in of_the_host:
            with contextlib.suppress(SpaceError), applied(member, plan, case.draft):
                pass
        assert everything_but_values(case) == before, plan
        assert same_bits(values_of(case), values), plan


@offering(EVERY)
def test_trace_is_undone_without_a_step_and_by_an_error(member: Strategy, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    before, values = everything_but_values(case), values_of(case)
    for plan in some(offered(member, case.facts())):
        for error in (None, KeyError, KeyboardInterrupt):
            with contextlib.suppress(KeyError, KeyboardInterrupt), applied(member, plan, case.draft):
                if error is not None:
                    raise error
            assert everything_but_values(case) == before, (plan, error)
            assert same_bits(values_of(case), values), (plan, error)


@offering(EVERY - INEXACT)
def test_exact_values_train_as_the_plain_step_up_to_rounding(member: Strategy, workload: str) -> None:
    for plan in some(offered(member, Case(WORKLOADS[workload]).facts("exact"))):
        if plan.values.get(ACCUMULATION_STEPS, 1) != 1 and workload == "convolutions":
            continue  # batch norm couples the samples; a gate measures that and leaves accumulation out
        case, plain = Case(WORKLOADS[workload]), Case(WORKLOADS[workload])
        with prepare(plan, case.draft, members()) as step:
            loss = step(case.step_batch(plan))
        torch.testing.assert_close(loss, prepare(Plan(), plain.draft, [])(plain.batch), rtol=1e-4, atol=1e-6)
        theirs = dict(chain(plain.model.named_parameters(), plain.model.named_buffers()))
        for name, tensor in chain(case.model.named_parameters(), case.model.named_buffers()):
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6, msg=partial("{}: {}".format, plan))


@offering(IN_INFERENCE)
def test_every_offered_value_runs_in_inference(member: Strategy, workload: str) -> None:
    case = Case(WORKLOADS[workload])
    case.draft.optimizer = None
    case.model.eval()
    expected = prepare(Plan(), case.draft, [])(case.batch)
    before, values = everything_but_values(case), values_of(case)
    for plan in some(offered(member, case.facts())):
        with prepare(plan, case.draft, members()) as step:
            torch.testing.assert_close(step(case.batch), expected, rtol=0.1, atol=0.1)
        assert everything_but_values(case) == before, plan
        assert same_bits(values_of(case), values), plan


@each_member
def test_batches_of_every_offered_value_hold_each_sample_once_and_leave_the_users_loader(member: Strategy) -> None:
    facts, loader = Case(mlp).facts(), cast(DataLoader[Any], TEXTS.loader)
    before = dict(vars(loader)), dict(vars(loader.dataset))
    assert batches_of(Plan(), TEXTS, [member]) is batches_of(defaults(facts), TEXTS, [member]) is TEXTS
    for plan in offered(member, facts):
        rebuilt: Any = batches_of(plan, TEXTS, [member]).rebuild(SAMPLES)
        for _ in range(2):
            labels = [label for batch in rebuilt for label in batch["label"].tolist()]
            assert sorted(labels) == list(range(96)), plan
    assert dict(vars(loader)) == before[0]
    assert {**vars(loader.dataset), "asked": 0} == {**before[1], "asked": 0}


@each_member
@each_workload
def test_plan_survives_json(member: Strategy, workload: str) -> None:
    for plan in offered(member, Case(WORKLOADS[workload]).facts(capabilities=EVERY_CAPABILITY)):
        again = Plan.model_validate_json(plan.model_dump_json())
        assert again == plan
        assert [type(value) for value in again.values.values()] == [type(value) for value in plan.values.values()]


@each_member
def test_impossible_value_is_a_space_error_and_leaves_no_trace(member: Strategy) -> None:
    case = Case(mlp)
    before = everything_but_values(case)
    for name in member.owns:
        with pytest.raises(SpaceError, match=name), applied(member, Plan(values={name: "nonsense"}), case.draft):
            pass
    assert everything_but_values(case) == before


@each_workload
def test_all_members_together_leave_no_trace(workload: str) -> None:
    case = Case(WORKLOADS[workload])
    facts = case.facts()
    knobs = list(chain.from_iterable(member.offer(facts).knobs for member in members()))
    plan = Plan(values={knob.name: knob.default for knob in knobs})
    for knob in reversed(knobs):  # the last value of each knob that goes with those of the later ones
        plans = (plan.replace(**{knob.name: v}) for v in reversed(knob.values) if v not in knob.one_pass)
        plan = next(each for each in plans if all(member.conflict(each) is None for member in members()))
    plan = plan.replace(micro_batch_size=2, accumulation_steps=2)
    assert all(member.conflict(plan) is None for member in members())
    before = everything_but_values(case)
    with prepare(plan, case.draft, members()) as step:
        for _ in range(2):
            assert step(case.step_batch(plan)).isfinite()
    assert everything_but_values(case) == before


@each_workload
def test_the_lists_of_offers_are_those_of_the_members(workload: str) -> None:
    case = Case(WORKLOADS[workload])
    listed = set(OFFERED[workload].split())
    exact = {member.name for member in members() if offered(member, case.facts("exact"))}
    assert exact == listed - INEXACT
    case.draft.optimizer = None
    assert {member.name for member in members() if offered(member, case.facts())} == listed & IN_INFERENCE


@each_member
def test_exact_offers_no_more_than_any(member: Strategy) -> None:
    for make in WORKLOADS.values():
        facts = Case(make).facts(capabilities=EVERY_CAPABILITY)
        exact = set(offered(member, replace(facts, numerics="exact")))
        assert exact <= set(offered(member, facts))
