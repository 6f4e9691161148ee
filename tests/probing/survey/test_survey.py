"""The survey puts knobs and sizes in play, asks the gates, and gives a reason for whatever it leaves out."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.budget import Clock
from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.space import Conflict, Refusal, SpaceFacts
from autofit.prepare import prepare
from autofit.probing.survey.survey import Survey
from autofit.probing.watchdog import _POLL_S, Watchdog
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.step import Draft, TrainStep
from tests.probing import targets

BATCHING = next(member for member in members() if member.name == "batching")
PRECISION = next(member for member in members() if member.name == "precision")


class Offering(Strategy):
    """A strategy that offers one knob and does nothing."""

    phase = Phase.MODULES

    def __init__(self, name: str, values: tuple[Any, ...], conflicts: str | None = None) -> None:
        self.name, self.owns = name, (name,)  # type: ignore[misc]  # a strategy per instance
        self.values, self.conflicts = values, conflicts

    def offer(self, facts: Facts) -> Offer:
        knob = Knob(name=self.name, values=self.values, default=self.values[0])
        return Offer((knob,), (Refusal(name=f"{self.name}=never", reason="not here"),))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        yield

    def conflict(self, plan: Plan) -> str | None:
        both = plan.values.get(self.name) == self.values[-1] and plan.values.get(self.conflicts or "")
        return f"{self.name} does not go with {self.conflicts}" if both else None


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def survey_of(
    *strategies: Strategy, model: nn.Module | None = None, loader: Any = None, loss: Any = cross_entropy, **facts: Any
) -> Survey:
    model = targets.mlp() if model is None else model
    loader = targets.vectors() if loader is None else loader
    source = BatchSource.of(loader)
    optimizer = facts.pop("optimizer", torch.optim.SGD(model.parameters()))

    def build(plan: Plan) -> TrainStep:
        rule = LossRule("loss", loss, inferred=False, about="")
        return prepare(plan, Draft(model, rule, optimizer, torch.device("cpu")), [*members(), *strategies])

    given: dict[str, Any] = {"numerics": "mixed", "training": True, "micro_batch_size": source.user_batch_size} | facts
    known = Facts(
        model=model,
        batch=source.typical(1 if source.resizable else source.user_batch_size, 1)[0],
        optimizer=optimizer,
        device_type="cpu",
        capabilities=frozenset({"bf16", "fp16"}),
        dataset_size=source.length,
        resizable=source.resizable,
        **given,
    )
    return Survey(known, strategies, build, source, seed=0)


def test_gates_end_with_their_share_of_the_time_budget_and_try_fewer_samples_before() -> None:
    sizes: list[int] = []

    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        sizes.append(len(batch[0]))
        time.sleep(0.5 * len(batch[0]))
        return cross_entropy(model, batch)

    survey = survey_of(BATCHING, loss=slow, global_batch_size=24, accumulation_steps=3)
    with Watchdog(Clock(limit_s=30.0)) as survey.watch:
        began = time.monotonic()
        space = survey.run()
        took_s = time.monotonic() - began
    assert space.sizes == (8,)
    (refused,) = survey.refused
    assert refused.reason.startswith("could not be checked: not finished within its share of the time budget of 30 s")
    assert 8 in sizes
    assert min(sizes) < 8  # how many times smaller depends on how busy the machine is
    assert took_s <= 5.0 + 2 * _POLL_S


def test_knobs_with_a_choice_are_in_play_and_refusals_are_kept() -> None:
    survey = survey_of(Offering("a", (1, 2)), Offering("only", (1,)))
    space = survey.run()
    assert [knob.name for knob in space.knobs] == ["a"]
    assert {refusal.name for refusal in space.refused} == {"a=never", "only=never"}
    assert space.baseline == Plan(values={"micro_batch_size": 8, "accumulation_steps": 1, "a": 1})
    assert space.sizes == (8,)  # batching was not among the strategies


def test_conflicts_are_found_for_every_combination() -> None:
    space = survey_of(Offering("a", (0, 1)), Offering("b", (0, 1, 2), conflicts="a")).run()
    assert space.forbidden == (Conflict(values={"a": 1, "b": 2}, reason="b does not go with a"),)


def test_too_many_plans_are_refused() -> None:
    strategies = [Offering(f"k{at}", tuple(range(10))) for at in range(6)]
    assert len(survey_of(*strategies).run().knobs) == 6
    with pytest.raises(SpaceError, match=r"more than 1,000,000 plans: combinations of k0, .*k6, at up to 1 micro"):
        survey_of(*strategies, Offering("k6", (0, 1))).run()


def global_batch(total: int, **more: Any) -> SpaceFacts:
    survey = survey_of(BATCHING, global_batch_size=total, micro_batch_size=8, accumulation_steps=total // 8, **more)
    return survey.run()


def test_under_a_global_batch_its_divisors_are_in_play() -> None:
    assert global_batch(24).sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert global_batch(24).refused == ()


def batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def test_where_accumulation_changes_the_gradient_only_the_users_own_size_is_left() -> None:
    space = global_batch(24, model=batch_norm())
    assert space.sizes == (8,)
    assert space.baseline.accumulation_steps == 3
    (refusal,) = space.refused
    assert refusal.name == "accumulation"
    assert "changes the gradient of this model: relative L2" in refusal.reason
    assert refusal.reason.endswith("The baseline's micro batch of 8 and its 3 accumulation steps are kept")
    (single,) = global_batch(8, model=batch_norm()).refused
    assert "baseline" not in single.reason


def test_a_refusal_by_a_gate_comes_first_and_those_of_the_device_last() -> None:
    survey = survey_of(
        PRECISION, Offering("a", (1, 2)), BATCHING, model=batch_norm(), global_batch_size=24, accumulation_steps=3
    )
    found = [(refusal.name, refusal.origin) for refusal in survey.run().refused]
    assert found == [("accumulation", "gate"), ("a=never", ""), ("precision=tf32", "device")]


def test_a_free_batch_needs_no_accumulation_and_no_gate() -> None:
    space = survey_of(BATCHING, model=batch_norm()).run()
    assert space.refused == ()
    assert space.sizes == (1, 2, 4, 8)  # a fiftieth of the data set is less than the user's own


def test_the_user_may_allow_what_changes_the_gradient() -> None:
    survey = survey_of(
        BATCHING, model=batch_norm(), numerics="any", global_batch_size=24, micro_batch_size=8, accumulation_steps=3
    )
    assert survey.run().sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert survey.refused == []
    (caveat,) = survey.caveats
    assert caveat.startswith("accumulation: accumulation changes the gradient")
    assert caveat.endswith("kept, as numerics='any' allows")
    assert [(gate.name, gate.passed) for gate in survey.gate_records] == [("accumulation", False)]


def token_loader(lengths: tuple[int, ...]) -> DataLoader[Any]:
    return targets.sentences(lengths, batch_size=8)


@pytest.mark.parametrize("lengths", [(3, 24), (24,) * 11 + (3,)])
def test_a_token_mean_is_weighted_by_tokens_also_when_few_samples_are_shorter(lengths: tuple[int, ...]) -> None:
    """D10: a padded language model is searched over its batch."""
    survey = survey_of(
        BATCHING,
        model=targets.Transformer(),
        loader=token_loader(lengths),
        loss=targets.token_mean,
        global_batch_size=24,
        micro_batch_size=8,
        accumulation_steps=3,
    )
    assert survey.run().sizes == (1, 2, 3, 4, 6, 8, 12, 24)
    assert survey.refused == []
    assert survey.weighing == Weighing("['labels']", ignored=-100)
    (caveat,) = survey.caveats
    assert caveat.startswith("the loss is a mean over batch['labels'] != -100: micro batches are weighted by it")
    assert "and so are the 3 micro batches of the baseline" in caveat


def test_labels_that_few_samples_lack_are_looked_for() -> None:
    """Images of one size, of which one in twenty has pixels that do not count: the first batch does not show it."""

    def pixel_mean(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], ignore_index=255)

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (64, 4, 4), generator=generator)
    labels[::20, :3] = 255
    data = TensorDataset(torch.randn(64, 1, 4, 4, generator=generator), labels)
    survey = survey_of(
        BATCHING,
        model=nn.Conv2d(1, 3, 3, padding=1),
        loader=DataLoader(data, batch_size=8),
        loss=pixel_mean,
        global_batch_size=24,
        micro_batch_size=8,
        accumulation_steps=3,
    )
    survey.run()
    assert survey.weighing == Weighing("[1]", ignored=255)


def test_a_mean_whose_count_is_not_in_the_batch_is_refused_with_a_cure() -> None:
    """D10: the message names what to do."""

    def long_ones(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        weights = 1 + batch[0][:, 0].exp()
        loss: torch.Tensor = (losses * weights).sum() / weights.sum()
        return loss

    (refusal,) = global_batch(24, loss=long_ones).refused
    assert refusal.name == "accumulation"
    assert "If the loss is a mean over tokens or a mask, put the labels or the mask into the batch" in refusal.reason
    assert "numerics='any'" in refusal.reason


def test_a_token_mean_over_equal_lengths_passes() -> None:
    space = global_batch(24, model=targets.Transformer(), loader=token_loader((6,)), loss=targets.token_mean)
    assert 24 in space.sizes


def test_precisions_that_do_not_keep_the_gradient_are_left_out() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.second(self.first(x * 1e5) * 1e-5)
            return output

    survey = survey_of(PRECISION, model=Large())
    space = survey.run()
    assert {knob.name: knob.values for knob in space.knobs} == {"precision": ("fp32", "bf16")}
    assert Refusal(name="precision=fp16", reason="the gradient is not finite", origin="gate") in space.refused
    assert [(gate.name, gate.passed) for gate in survey.gate_records] == [
        ("precision=bf16", True),
        ("precision=fp16", False),
    ]
    assert survey.gate_records[0].reason.startswith("cosine of the gradient ")  # one that passed has its numbers too


def test_inference_has_an_output_to_keep_instead_of_a_gradient() -> None:
    survey = survey_of(PRECISION, loss=lambda model, batch: model(batch[0]), optimizer=None, training=False)
    assert [knob.values for knob in survey.run().knobs] == [("fp32", "bf16", "fp16")]
    assert [(gate.name, gate.passed) for gate in survey.gate_records] == [
        ("precision=bf16", True),
        ("precision=fp16", True),
    ]
    assert survey.gate_records[0].reason.startswith("cosine of the output ")


class Sizes:
    """A loss that writes down the sizes it is asked with, and fails above one."""

    def __init__(self, most: int, error: type[Exception]) -> None:
        self.most, self.error = most, error
        self.seen: list[Any] = []

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.seen.append(len(batch[0]))
        if len(batch[0]) > self.most:
            raise self.error("too much")
        return cross_entropy(model, batch)


def test_a_gate_that_fails_is_asked_again_with_less() -> None:
    loss = Sizes(most=4, error=torch.OutOfMemoryError)
    assert 24 in global_batch(24, loss=loss).sizes
    assert loss.seen == [1, 8, 1, 4, 1, 1, 1, 1]  # one sample first, to see what the step draws


@pytest.mark.parametrize("error", [KeyError, RuntimeError, AttributeError])
def test_a_gate_that_cannot_be_run_has_not_been_passed(error: type[Exception]) -> None:
    space = global_batch(24, loss=Sizes(most=0, error=error))
    (refusal,) = space.refused
    assert refusal.reason.startswith(f"could not be checked: {error.__name__}: ")
    assert space.sizes == (8,)


def test_a_gate_asks_no_more_than_the_user_runs() -> None:
    loss = Sizes(most=99, error=RuntimeError)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long)), batch_size=3)
    survey_of(BATCHING, loader=loader, loss=loss, global_batch_size=24, accumulation_steps=8).run()
    assert max(loss.seen) == 2


class Margin:
    """A loss without a gradient where a batch has fewer samples than `least`, as one of a margin may be."""

    def __init__(self, least: int) -> None:
        self.least, self.seen = least, list[int]()

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.seen.append(len(batch[0]))
        return cross_entropy(model, batch) * (len(batch[0]) >= self.least)


@pytest.mark.parametrize(("least", "passes"), [(16, True), (1000, False)])
def test_a_gate_takes_the_users_own_batch_where_a_small_one_has_no_gradient(least: int, passes: bool) -> None:
    loss = Margin(least)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.zeros(64, dtype=torch.long)), batch_size=32)
    survey = survey_of(PRECISION, loader=loader, loss=loss)
    survey.run()
    reasons = {refusal.name: refusal.reason for refusal in survey.refused}
    assert ("precision=bf16" not in reasons) == passes
    assert set(loss.seen) == {8, 32}
    assert passes or reasons["precision=bf16"] == "could not be checked: the gradient is zero on this batch"


def test_where_batches_cannot_be_cut_precision_is_checked_on_the_users_own() -> None:
    loader = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), torch.rand(5)) for _ in range(3)]
    loss = Sizes(most=99, error=RuntimeError)
    survey = survey_of(Offering("a", (1, 2)), PRECISION, loader=loader, loss=loss)
    assert [knob.name for knob in survey.run().knobs] == ["a", "precision"]
    assert set(loss.seen) == {4}


def test_where_no_small_batch_can_be_run_precision_is_checked_on_the_users_own() -> None:
    """As of one graph, whose every node the model wants to see."""

    def whole(model: nn.Module, batch: Any) -> torch.Tensor:
        return cross_entropy(model, (batch[0].view(40, 8), batch[1]))

    loader = [(torch.randn(40, 8), torch.zeros(40, dtype=torch.long))]
    survey = survey_of(PRECISION, loader=loader, loss=whole)
    assert [knob.name for knob in survey.run().knobs] == ["precision"]
