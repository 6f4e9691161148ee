"""A sample draws the same numbers alone, in half a batch and in the whole one; what cannot be so is noticed."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autofit.gates.draws import DrawLog, SharedDraws, draws

ATEN = torch.ops.aten
HEADS = torch.ones(1, 2, 4, 8)
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default
SAMPLES = 6
Draw = Callable[[torch.Tensor], torch.Tensor]


def drawn(draw: Draw, ledger: DrawLog, sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Returns what each micro batch of these sizes draws, each from the same seed. The first step is recorded."""
    found, first = [], 0
    for size in sizes:
        mode = SharedDraws(ledger, first, size, record=not ledger.samples)
        torch.manual_seed(1)
        ledger.rewind()
        with mode:
            found.append(draw(torch.linspace(0.1, 0.9, SAMPLES * 20).view(SAMPLES, 20)[first : first + size].to(dtype)))
        mode.ended()
        first += size
    return found


def learned(draw: Draw) -> DrawLog:
    """Returns the draws of the whole batch."""
    ledger = DrawLog()
    drawn(draw, ledger, [SAMPLES])
    return ledger


def in_place(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).normal_(2.0, 3.0)


def _attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(len(x), 1, 4, 5)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)


BY_SAMPLE: dict[str, Draw] = {
    "randn_like": torch.randn_like,
    "rand": lambda x: torch.rand(x.shape),
    "randint": lambda x: torch.randint(0, 1000, (len(x),)),
    "normal_": in_place,
    "bernoulli_": lambda x: torch.empty_like(x[:, :1]).bernoulli_(0.5),
    "bernoulli": torch.bernoulli,
    "poisson": torch.poisson,
    "multinomial": lambda x: torch.multinomial(x, 5),
    "multinomial of one row": lambda x: torch.multinomial(torch.ones(1000), len(x), replacement=True),
    "picks that are not put back": lambda x: torch.multinomial(torch.ones(100), len(x)),
    "as many classes as samples": lambda x: torch.multinomial(torch.ones(SAMPLES), len(x), replacement=True),
    "categorical": lambda x: torch.distributions.Categorical(torch.ones(1000)).sample((len(x),)),  # type: ignore[no-untyped-call]  # torch has no types here
    "categorical of each": lambda x: torch.distributions.Categorical(x).sample(),  # type: ignore[no-untyped-call]  # torch has no types here
    "dropout": lambda x: F.dropout(x, 0.3, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "attention": _attention,
    "a mean for all and deviations for each": lambda x: torch.normal(x.new_zeros(1, 20), x),
    "several": lambda x: torch.randn_like(x) + torch.rand(1) * torch.rand(len(x), 1),
}


@pytest.mark.parametrize("name", BY_SAMPLE)
@pytest.mark.parametrize("sizes", [[1] * SAMPLES, [3, 3], [2, 4]], ids=["singles", "halves", "uneven"])
def test_a_sample_draws_the_same_in_any_micro_batch(name: str, sizes: list[int]) -> None:
    draw = BY_SAMPLE[name]
    ledger = learned(draw)
    (whole,) = drawn(draw, ledger, [SAMPLES])
    assert torch.equal(torch.cat(drawn(draw, ledger, sizes)), whole)
    assert len({tuple(row.flatten().tolist()) for row in whole}) > 1  # samples differ from each other
    assert ledger.drawn
    assert not ledger.unshared


def test_another_seed_gives_other_numbers() -> None:
    ledger = learned(torch.randn_like)
    (one,) = drawn(torch.randn_like, ledger, [SAMPLES])
    torch.manual_seed(2)
    with SharedDraws(ledger, 0, SAMPLES, record=False):
        assert not torch.equal(torch.randn_like(one), one)
    assert ledger.unshared


def test_numbers_are_distributed_as_asked_and_samples_are_independent() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(len(x), 10_000).normal_(2.0, 3.0)

    (whole,) = drawn(draw, learned(draw), [SAMPLES])
    assert float(whole.mean()) == pytest.approx(2, abs=0.1)
    assert float(whole.std()) == pytest.approx(3, abs=0.1)
    assert float((torch.corrcoef(whole) - torch.eye(SAMPLES)).abs().max()) < 0.1


def test_samples_are_found_along_any_dimension() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(7, len(x), 2)

    ledger = learned(draw)
    (whole,) = drawn(draw, ledger, [SAMPLES])
    assert torch.equal(torch.cat(drawn(draw, ledger, [1] * SAMPLES), 1), whole)


def test_a_coin_for_the_whole_step_is_the_same_in_each_micro_batch() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(1)

    ledger = learned(draw)
    (whole,) = drawn(draw, ledger, [SAMPLES])
    assert all(torch.equal(part, whole) for part in drawn(draw, ledger, [1] * SAMPLES))
    assert not ledger.unshared


def test_16_bits_are_rounded_from_what_32_bits_draw() -> None:
    ledger = learned(torch.randn_like)
    (exact,) = drawn(torch.randn_like, ledger, [SAMPLES])
    (rounded,) = drawn(torch.randn_like, ledger, [SAMPLES], torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(exact.bfloat16(), rounded)


def test_a_generator_of_the_users_own_is_as_it_was() -> None:
    own = torch.Generator().manual_seed(7)
    before = own.get_state()

    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.randn(x.shape, generator=own)

    ledger = learned(draw)
    (whole,) = drawn(draw, ledger, [SAMPLES])
    assert torch.equal(torch.cat(drawn(draw, ledger, [1] * SAMPLES)), whole)
    ledger.rewind()
    assert torch.equal(own.get_state(), before)


APART: dict[str, Draw] = {
    "an order of the samples": lambda x: torch.randperm(len(x)),
    "more for each sample than the last": lambda x: torch.rand(len(x) ** 2),
    "two views one after the other": lambda x: torch.randn_like(torch.cat([x, x])),
    "only where there are several": lambda x: torch.rand(len(x), 1) if len(x) > 1 else x[:, :1],
}


@pytest.mark.parametrize("name", APART)
def test_what_cannot_be_shared_is_noticed(name: str) -> None:
    ledger = learned(APART[name])
    drawn(APART[name], ledger, [SAMPLES])
    assert not ledger.unshared  # the same batch draws the same
    drawn(APART[name], ledger, [1] * SAMPLES)
    assert ledger.unshared


def test_what_draws_nothing_is_left_alone() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        query = x.view(len(x), 1, 4, 5)
        return F.scaled_dot_product_attention(query, query, query, dropout_p=0.0) + F.dropout(x, 0.5, False).sum()

    assert not learned(step).drawn


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "expected"),
    [
        (ATEN.bernoulli.p, (HEADS, 0.5), {}, True),
        (ATEN.native_dropout.default, (HEADS, 0.1, True), {}, True),
        (ATEN.rand_like.default, (HEADS,), {}, True),
        (ATEN.gelu.default, (HEADS,), {}, False),
        (ATTENTION, (HEADS, HEADS, HEADS, 0.1), {}, True),
        (ATTENTION, (HEADS, HEADS, HEADS), {"dropout_p": 0.1}, True),
        (ATTENTION, (HEADS, HEADS, HEADS, 0.0), {}, False),
        (ATTENTION, (HEADS, HEADS, HEADS), {}, False),
    ],
)
def test_an_operator_draws_unless_its_dropout_is_zero(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool
) -> None:
    assert draws(func, args, kwargs) is expected
