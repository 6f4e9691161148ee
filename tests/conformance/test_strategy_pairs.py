"""Every pair of values of two strategies trains a step, or is refused with a reason; nothing else happens.

A plan that torch could only refuse in the middle of a training must be refused before it. The pairs are those that a
search would try on the host, at `numerics="any"`. Pairs that are also offered at `numerics="exact"` must give the loss,
the gradients and the weights of the plain step, up to rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, combinations, product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Offer, Phase, Strategy
from autofit.workloads.batch_algebra import split
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.conformance.test_strategies import (
    OFFERED,
    SAMPLES,
    WORKLOADS,
    Case,
    everything_but_values,
    offered,
    same_bits,
    values_of,
)
from tests.gates.comparing import accumulated

pytestmark = [
    pytest.mark.usefixtures("no_kernels"),
    pytest.mark.filterwarnings(  # torch's own, while it captures a graph: as errors they would end the capture
        "ignore:The .grad attribute of a Tensor that is not a leaf", "ignore:.*should not be instantiated"
    ),
]

PAIRED = {**OFFERED, "gpt": OFFERED["decoder"].replace("attention ", "")}
"""As `OFFERED`, of the workloads here."""
COMPILES = "compilation"
REASON = 10
"""Minimum number of letters of a reason."""


def gpt() -> nn.Module:
    """A language model of `transformers` without dropout, which computes its own loss."""
    transformers = pytest.importorskip("transformers")
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    sizes = {"vocab_size": 31, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**sizes, **tokens, **dropouts)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


class LanguageCase(Case):
    """A language model with labels, some of which are ignored: each sample has as many."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = gpt()
        # The keys' bias has no gradient but rounding errors, which a small eps would blow up.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, eps=1e-3)
        tokens = torch.randint(0, 31, (SAMPLES, 6))
        self.batch: Any = {"input_ids": tokens, "labels": tokens.where(torch.arange(6) > 1, -100)}
        self.draft = Draft(self.model, resolve_loss(self.model, self.batch), self.optimizer, torch.device("cpu"))
        prepare(Plan(), self.draft, [])(self.batch)


CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(Case, make) for name, make in WORKLOADS.items()},
    "gpt": LanguageCase,
}


@cache
def values_by_member(workload: str, numerics: Any) -> dict[str, list[Plan]]:
    """Returns a plan for each value except the defaults, by member."""
    facts = CASES[workload]().facts(numerics)
    plain = {knob.name: knob.default for member in members() for knob in member.offer(facts).knobs}
    return {
        member.name: [plan for plan in offered(member, facts) if any(plain[k] != v for k, v in plan.values.items())]
        for member in members()
    }


@cache
def accumulates(workload: str) -> bool:
    """Returns whether micro batches keep the gradient of this workload, as the gate of a search finds."""
    case = CASES[workload]()
    return accumulated(lambda plan: prepare(plan, case.draft, members()), case.batch, 0).passed


@cache
def space(workload: str) -> SearchSpace:
    """Returns the space of a search of this workload, as its survey would make it without conflicts."""
    knobs = [knob for member in members() for knob in member.offer(CASES[workload]().facts()).knobs]
    defaults = {knob.name: knob.default for knob in knobs}
    playing = tuple(knob for knob in knobs if knob.name not in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS))
    (sizes,) = (knob.values for knob in knobs if knob.name == MICRO_BATCH_SIZE)
    found = SpaceFacts(
        knobs=playing, sizes=tuple(map(int, sizes)), global_batch_size=SAMPLES, baseline=Plan(values=defaults)
    )
    return SearchSpace(found)


def refusal(plan: Plan, workload: str) -> str | None:
    """Returns why a search would leave this plan out, or None."""
    reasons = (member.conflict(plan) for member in members())
    return next((reason for reason in reasons if reason is not None), space(workload).violation(plan))


@dataclass
class Trained:
    """What one step computes: its loss, the gradients that the update finds, and everything that it leaves trained."""

    case: Case
    loss: torch.Tensor | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    reason: str | None = None

    def run(self, plan: Plan) -> "Trained":
        """Trains one step, or notes the reason of a refusal. Checks that nothing but trained values is changed."""
        case = self.case
        before, values = everything_but_values(case), values_of(case)
        try:
            with prepare(plan, case.draft, members()) as step:
                step.observe = partial(self._note, step)
                self.loss = step(StepBatch.of(self._parts(plan)))
        except SpaceError as error:
            self.reason = str(error)
            assert same_bits(values_of(case), values), plan
        assert everything_but_values(case) == before, plan
        return self

    def _parts(self, plan: Plan) -> list[Any]:
        size = int(plan.values.get(MICRO_BATCH_SIZE, SAMPLES))
        return split(self.case.batch, [size] * (SAMPLES // size))

    def _note(self, step: TrainStep, phase: str) -> None:
        if phase == "optimizer":
            self.gradients = {
                name: p.grad.detach().clone() for name, p in step.model.named_parameters() if p.grad is not None
            }

    @property
    def trained(self) -> dict[str, torch.Tensor]:
        return {**dict(chain(self.case.model.named_parameters(), self.case.model.named_buffers()))}


@cache
def plain(workload: str) -> Trained:
    return Trained(CASES[workload]()).run(Plan())


def pairs() -> Iterator[Any]:
    """Yields each workload with each pair of members that both offer something for it; capturing graphs is slow."""
    for workload, names in PAIRED.items():
        for one, other in combinations(names.split(), 2):
            marks = [pytest.mark.slow] if COMPILES in (one, other) else []
            yield pytest.param(workload, one, other, id=f"{workload}-{one}-{other}", marks=marks)


@pytest.fixture(autouse=True)
def a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the host offer compilation, whose graphs are captured and run without kernels."""
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.parametrize("workload", CASES)
def test_every_member_that_offers_something_is_paired(workload: str) -> None:
    offering = {name for name, plans in values_by_member(workload, "any").items() if plans}
    assert offering == set(PAIRED[workload].split())


@pytest.mark.parametrize(("workload", "one", "other"), list(pairs()))
def test_every_pair_of_values_trains_or_is_refused_with_a_reason(workload: str, one: str, other: str) -> None:
    found, exact = values_by_member(workload, "any"), values_by_member(workload, "exact")
    if not (found[one] and found[other]):
        pytest.skip("a library of this pair is not installed")
    for first, second in product(found[one], found[other]):
        plan = Plan(values={**space(workload).baseline.values, **first.values, **second.values})
        reason = refusal(plan, workload)
        if reason is None:
            trained = Trained(CASES[workload]()).run(plan)
            reason = trained.reason
        if reason is not None:
            assert len(reason) >= REASON, plan
            continue
        assert trained.loss is not None
        assert trained.loss.isfinite(), plan
        if first in exact[one] and second in exact[other]:
            _check_alike(trained, plan, workload)


def _check_alike(trained: Trained, plan: Plan, workload: str) -> None:
    """Checks that a pair trains as the plain step does, up to rounding."""
    if plan.values.get(ACCUMULATION_STEPS, 1) != 1 and not accumulates(workload):
        return  # samples interact: a search leaves accumulation out
    expected, close = plain(workload), partial(torch.testing.assert_close, rtol=1e-4, atol=1e-6)
    close(trained.loss, expected.loss)
    for name, gradient in trained.gradients.items():  # none are left where the update ran inside backward
        close(gradient, expected.gradients[name], msg=partial("gradient of {}, {}: {}".format, name, plan))
    for name, tensor in trained.trained.items():
        close(tensor, expected.trained[name], msg=partial("{}, {}: {}".format, name, plan))


def test_micro_batches_keep_the_gradient_of_some_workloads() -> None:
    """Without this the comparison of pairs with accumulation could be left out everywhere."""
    assert {accumulates(workload) for workload in CASES} == {True, False}


class Flawed(Strategy):
    """A member as it must not be; `flaw` is what it does to a draft."""

    name, owns, phase = "flawed", {"flawed": None}, Phase.ARITHMETIC
    about, cost, effect = "breaks a promise", "nothing", "exact"

    def __init__(self, flaw: Callable[[Draft], object]) -> None:
        self._flaw = flaw

    def offer(self, facts: Any) -> Offer:
        return Offer()

    def acts(self, plan: Plan) -> bool:
        return True

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        loss = draft.loss
        self._flaw(draft)
        yield
        draft.loss = loss


def leaves_a_hook(draft: Draft) -> None:
    draft.model.register_forward_pre_hook(lambda module, inputs: None)


def doubles_the_loss(draft: Draft) -> None:
    compute = draft.loss.compute
    draft.loss = replace(draft.loss, compute=lambda model, batch: 2 * compute(model, batch))


def doubles_the_gradient(draft: Draft) -> None:
    """The loss stays as it was."""
    compute = draft.loss.compute

    def doubled(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = compute(model, batch)
        return 2 * loss - loss.detach()

    draft.loss = replace(draft.loss, compute=doubled)


def fails_in_the_step(draft: Draft) -> None:
    draft.loss = replace(draft.loss, compute=lambda model, batch: model(batch))


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        (leaves_a_hook, AssertionError),
        (doubles_the_loss, AssertionError),
        (doubles_the_gradient, AssertionError),
        (fails_in_the_step, TypeError),
    ],
)
def test_the_test_finds_flaws(flaw: Callable[[Draft], object], error: type[Exception]) -> None:
    plain("mlp")
    every = (*members(), Flawed(flaw))
    with patch("tests.conformance.test_strategy_pairs.members", lambda: every), pytest.raises(error):
        _check_alike(Trained(CASES["mlp"]()).run(Plan()), Plan(), "mlp")
