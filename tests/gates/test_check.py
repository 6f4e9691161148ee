"""A plan is compared with the baseline at once; where it does not hold, the value at fault is found."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.plan import Plan
from autofit.gates.check import GradientCheck, notes
from autofit.gates.verdict import Checked, GateVerdict
from autofit.strategies import members
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.workloads.batches import BatchSource
from autofit.workloads.step import Draft
from tests.probing import targets
from tests.probing.test_survey import cross_entropy, survey_of

BF16 = "precision=bf16"


class Scaling(Strategy):
    """A fake technique that multiplies the gradient; the model has it once for each use."""

    phase = Phase.MODULES

    def __init__(self, name: str, factor: float, **attributes: Any) -> None:
        self.factor, self.applied = factor, 0
        vars(self).update({"name": name, "owns": {name: False}, **attributes})

    def offer(self, facts: Facts) -> Offer:
        raise AssertionError("not asked")

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        loss = draft.loss
        if plan.values.get(self.name) is True:
            self.applied += 1
            draft.loss = replace(loss, compute=lambda model, batch: self.factor * loss.compute(model, batch))
        yield
        draft.loss = loss


def checked(
    values: Mapping[str, Any],
    *strategies: Strategy,
    known: Mapping[str, GateVerdict] | None = None,
    baseline: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Checked:
    """Returns the check of the baseline with these values changed."""
    survey = survey_of(*strategies, **facts)
    size, steps = survey.facts.micro_batch_size, survey.facts.accumulation_steps
    values_of_baseline = {"micro_batch_size": size, "accumulation_steps": steps}
    plain = Plan(
        values={
            **values_of_baseline,
            **dict.fromkeys((name for each in strategies for name in each.owns), False),
            **(baseline or {}),
        }
    )
    check = GradientCheck(
        facts=survey.facts,
        strategies=[*members(), *strategies],
        steps=survey.steps,
        source=survey.source,
        put_back=lambda: None,
        plan=plain.replace(**values),
        baseline=plain,
        known=known or {},
    )
    check.run()
    return check.result()


def test_all_values_of_a_plan_are_compared_at_once_and_pass_one_by_one() -> None:
    one, other = Scaling("one", 1.0), Scaling("other", 1.0, gated=True)
    found = checked({"one": True, "other": True}, one, other)
    assert found.passed
    assert found.verdicts.keys() == {"one=True", "other=True"}
    assert found.verdicts["one=True"] == found.verdicts["other=True"]
    assert (one.applied, other.applied) == (1, 1)
    assert (found.caveats, found.refused) == ((), ())


class Reordering(Scaling):
    def batches(self, plan: Plan, source: BatchSource) -> BatchSource:
        return source.by_length if plan.values.get(self.name) else source


def test_a_gated_technique_that_changes_the_batches_needs_a_batch_of_its_own() -> None:
    found = checked({"one": True}, Reordering("one", 1.0, gated=True))
    assert (found.passed, found.checked) == (False, False)
    assert "names none on which its gradient can be compared" in found.reason


def test_values_that_passed_before_are_not_compared_again() -> None:
    one, other = Scaling("one", 1.0), Scaling("other", 1.0)
    known = checked({"one": True}, one, other).verdicts
    one.applied = 0
    assert checked({"one": True}, one, other, known=known) == Checked()
    assert one.applied == 0
    more = checked({"one": True, "other": True}, one, other, known=known)
    assert more.passed
    assert more.verdicts.keys() == {"other=True"}


def test_a_value_that_failed_before_fails_at_once() -> None:
    one = Scaling("one", 1.0)
    found = checked({"one": True}, one, known={"one=True": GateVerdict(passed=False, reason="far")})
    assert (found.passed, found.checked, found.reason) == (False, True, "one=True: far")
    assert one.applied == 0


@pytest.mark.parametrize("at", range(5))
def test_the_value_at_fault_is_found(at: int) -> None:
    strategies = [Scaling(f"k{number}", 1.5 if number == at else 1.0) for number in range(5)]
    found = checked({each.name: True for each in strategies}, *strategies)
    assert (found.passed, found.checked) == (False, True)
    assert [refusal.name for refusal in found.refused] == [f"k{at}=True"]
    assert found.refused[0].origin == "gate"
    assert found.reason.startswith(f"k{at}=True: relative L2 of the gradient 5.0e-01")
    assert {name: verdict.passed for name, verdict in found.verdicts.items()} == {
        f"k{number}=True": number != at for number in range(5)
    }


def test_values_that_fail_together_alone_are_refused_together() -> None:
    pair = [Scaling("one", 1.0008), Scaling("other", 1.0008)]  # at most 1e-3
    found = checked({"one": True, "other": True}, *pair)
    assert not found.passed
    assert [refusal.name for refusal in found.refused] == ["one=True & other=True"]
    again = checked({"one": True, "other": True}, *pair, known=found.verdicts)
    assert (again.passed, again.verdicts) == (False, {})
    assert checked({"one": True}, *pair, known=found.verdicts).passed


def test_the_limits_are_those_of_precision_only_if_a_technique_reduces_it() -> None:
    assert not checked({"one": True}, Scaling("one", 1.01)).passed
    found = checked({"one": True, "precision": "bf16"}, Scaling("one", 1.01), baseline={"precision": "fp32"})
    assert found.passed
    assert "cosine of the gradient" in found.verdicts[BF16].reason


def test_the_user_may_allow_what_changes_the_gradient() -> None:
    found = checked({"one": True, "other": True}, Scaling("one", 1.5), Scaling("other", 1.0), numerics="any")
    assert (found.passed, found.refused) == (True, ())
    assert [verdict.passed for _, verdict in sorted(found.verdicts.items())] == [False, True]
    (caveat,) = found.caveats
    assert caveat.startswith("one=True: relative L2 of the gradient 5.0e-01")
    assert caveat.endswith("kept, as numerics='any' allows")
    again = checked({"one": True}, Scaling("one", 1.5), numerics="any", known=found.verdicts)
    assert (again.passed, again.verdicts, again.caveats) == (True, {}, found.caveats)


def broken(model: nn.Module, batch: Any) -> torch.Tensor:
    raise KeyError("labels")


def test_a_precision_whose_step_fails_is_unchecked_and_an_exact_technique_passes_with_a_note() -> None:
    found = checked({"precision": "bf16"}, loss=broken, baseline={"precision": "fp32"})
    assert (found.passed, found.checked, found.verdicts) == (False, False, {})
    assert found.reason == "precision=bf16 could not be checked: KeyError: 'labels'"
    exact = checked({"one": True}, Scaling("one", 1.0), loss=broken)
    assert exact.passed
    assert "one=True: the gradient was not compared with that of the baseline: could not be" in exact.caveats[0]


def batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


SMALLER = {"micro_batch_size": 4, "accumulation_steps": 6}
UNDER_24: dict[str, Any] = {"global_batch_size": 24, "micro_batch_size": 8, "accumulation_steps": 3}


def test_other_micro_batches_are_checked_where_they_differ_from_the_baselines() -> None:
    assert checked({}, model=batch_norm(), **UNDER_24) == Checked()
    found = checked(SMALLER, model=batch_norm(), **UNDER_24)
    assert [refusal.name for refusal in found.refused] == ["accumulation"]
    assert "changes the gradient of this model: relative L2" in found.reason
    assert found.reason.endswith("The baseline's micro batch of 8 and its 3 accumulation steps are kept")
    assert checked(SMALLER, **UNDER_24).passed


@pytest.mark.parametrize("lengths", [(3, 24), (24,) * 11 + (3,)])
def test_a_token_mean_is_weighted_by_tokens_also_when_few_samples_are_shorter(lengths: tuple[int, ...]) -> None:
    """D10: a padded language model is searched over its batch."""
    found = checked(
        SMALLER,
        model=targets.Transformer(),
        loader=targets.sentences(lengths, batch_size=8),
        loss=targets.token_mean,
        **UNDER_24,
    )
    assert found.passed, found.reason
    assert found.verdicts["accumulation"].weighing == "batch['labels'] != -100"
    (caveat,) = found.caveats
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
    loader = DataLoader(data, batch_size=8)
    found = checked(SMALLER, model=nn.Conv2d(1, 3, 3, padding=1), loader=loader, loss=pixel_mean, **UNDER_24)
    assert found.verdicts["accumulation"].weighing == "batch[1] != 255"


def test_a_mean_whose_count_is_not_in_the_batch_is_refused_with_a_cure() -> None:
    """D10: the message names what to do."""

    def long_ones(model: nn.Module, batch: Any) -> torch.Tensor:
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        weights = 1 + batch[0][:, 0].exp()
        loss: torch.Tensor = (losses * weights).sum() / weights.sum()
        return loss

    found = checked(SMALLER, loss=long_ones, **UNDER_24)
    assert not found.passed
    assert "put what it is a mean over into the batch" in found.reason
    assert "numerics='any'" in found.reason


@pytest.mark.fault("F44")
def test_a_precision_that_overflows_does_not_pass() -> None:
    own = {"precision": "fp32"}
    assert checked({"precision": "bf16"}, model=targets.Overflowing(), baseline=own).passed
    assert checked({"precision": "fp16"}, model=targets.Overflowing(), baseline=own).reason.endswith(
        "the gradient is not finite"
    )


def test_inference_has_an_output_to_keep_instead_of_a_gradient() -> None:
    found = checked(
        {"precision": "bf16", "micro_batch_size": 16},
        loss=lambda model, batch: model(batch[0]),
        optimizer=None,
        training=False,
        baseline={"precision": "fp32"},
    )
    assert found.passed
    assert found.verdicts.keys() == {BF16}
    assert found.verdicts[BF16].reason.startswith("cosine of the output ")


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
    assert checked(SMALLER, loss=loss, **UNDER_24).passed
    assert loss.seen == [8, 4, 4, 4, 4, 4, 1, 1, 1, 1]


@pytest.mark.parametrize("error", [KeyError, RuntimeError, AttributeError])
def test_accumulation_that_cannot_be_run_has_not_been_passed(error: type[Exception]) -> None:
    found = checked(SMALLER, loss=Sizes(most=0, error=error), **UNDER_24)
    assert (found.passed, found.checked) == (False, False)
    assert found.reason.startswith(f"accumulation could not be checked: {error.__name__}: ")


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
    found = checked({"precision": "bf16"}, loader=loader, loss=loss, baseline={"precision": "fp32"})
    assert found.passed is passes
    assert set(loss.seen) == {8, 32}
    assert passes or found.reason == f"{BF16} could not be checked: the gradient is zero on this batch"


def test_where_batches_cannot_be_cut_precision_is_checked_on_the_users_own() -> None:
    loader = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long), torch.rand(5)) for _ in range(3)]
    loss = Sizes(most=99, error=RuntimeError)
    assert checked({"precision": "bf16"}, loader=loader, loss=loss, baseline={"precision": "fp32"}).passed
    assert set(loss.seen) == {4}


@pytest.mark.parametrize(("factor", "passed"), [(1.04, True), (1.06, False)])
def test_code_that_is_compiled_for_a_plan_is_compared_with_the_plan_without_it(factor: float, passed: bool) -> None:
    """Neither holds with the baseline together; the code is compared on the batch for which it may exist already."""
    coarse, late = Scaling("coarse", 1.1, gated=True), Scaling("late", factor, gated_in_proof=True, effect="rounding")
    known = {"coarse=True": GateVerdict(passed=True, reason="")}
    found = checked({"late": True, "coarse": True}, late, coarse, known=known)
    assert found.verdicts["late=True"].passed is passed


def test_what_was_compared_as_the_model_trains_has_no_note() -> None:
    assert list(notes({"precision=bf16": GateVerdict(passed=True, reason="close")}, 1)) == []


def test_values_that_were_compared_otherwise_share_one_note() -> None:
    verdict = GateVerdict(passed=True, reason="the gradient cannot be compared", evaluated=True)
    (note,) = notes({"precision=bf16": verdict, "compile=blocks": verdict}, 1)
    assert note.startswith("precision=bf16, compile=blocks: the gradient cannot be compared. Compare the first losses")


def test_what_was_not_compared_or_is_allowed_nevertheless_is_said() -> None:
    uncompared = GateVerdict(passed=True, reason="could not be checked: no loss", compared=False)
    failed = GateVerdict(passed=False, reason="far")
    values = {"compile=blocks": uncompared, "precision=fp16": failed, "accumulation": failed}
    first, second = notes(values, 1)
    assert first.startswith("compile=blocks: the gradient was not compared with that of the baseline: could not")
    assert second == "precision=fp16, accumulation: far; kept, as numerics='any' allows"


def test_accumulation_says_how_micro_batches_are_weighted_and_what_moves() -> None:
    verdict = GateVerdict(passed=True, reason="alike", weighing="1", moves=("model.teacher",), evaluated=True)
    weighing, moving, evaluated = notes({"accumulation": verdict}, 4)
    assert "micro batches are added up, and so are the 4 micro batches of the baseline" in weighing
    assert "changes model.teacher by itself" in moving
    assert "evaluation mode" in evaluated
    assert list(notes({"accumulation": GateVerdict(passed=True, reason="alike")}, 4)) == []
