"""Means of random gradients: alike where only noise differs, told apart where an objective changes."""

from collections import Counter

import pytest
import torch

from autofit.gates.compare import LOOKS, MOST_L2, compare_means

TRIALS = 40


def draws(effect: float, noise: float, size: int = 100, seed: int = 0) -> "Draws":
    return Draws(effect, noise, size, torch.Generator().manual_seed(seed))


class Draws:
    """Two sides with means that differ by `effect`, under noise of which some directions have most."""

    def __init__(self, effect: float, noise: float, size: int, generator: torch.Generator) -> None:
        self.generator, self.size, self.count = generator, size, 0
        mean, change = self.unit(), self.unit()
        self.one, self.other = mean + effect * change, mean
        spread = torch.logspace(0, -1, size)
        self.noise = noise * spread / spread.norm()

    def unit(self) -> torch.Tensor:
        vector = torch.randn(self.size, generator=self.generator)
        unit: torch.Tensor = vector / vector.norm()
        return unit

    def __call__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        assert number == self.count
        return tuple(side + self.noise * torch.randn(self.size, generator=self.generator) for side in self.sides)

    @property
    def sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one, self.other


@pytest.mark.parametrize(
    ("effect", "noise", "right"),
    [(0, 0.3, "alike"), (0, 0.7, "alike"), (0.26, 0.3, "differ"), (0.26, 0.7, "differ"), (0.6, 1.5, "differ")],
)
def test_verdicts_are_right_in_noise_as_large_as_the_gradient(effect: float, noise: float, right: str) -> None:
    seen = Counter[str]()
    for seed in range(TRIALS):
        found = compare_means(draws(effect, noise, seed=seed))
        seen["alike" if found.passed else "differ" if found.compared else "open"] += 1
    assert seen[right] == TRIALS


@pytest.mark.parametrize("effect", [0, 0.26])
def test_too_much_noise_decides_nothing_rather_than_the_wrong(effect: float) -> None:
    found = [compare_means(draws(effect, 4.0, seed=seed)) for seed in range(TRIALS)]
    assert sum(one.passed for one in found) == 0
    assert sum(not one.compared for one in found) >= TRIALS - 1
    assert "the noise of the step's random numbers is too large to decide" in found[0].reason


def test_no_more_is_drawn_than_the_question_takes() -> None:
    few, many = draws(0.9, 0.3), draws(0, 1.0)
    assert compare_means(few).compared
    assert few.count == LOOKS[0]
    compare_means(many)
    assert few.count < many.count <= LOOKS[-1]


def test_the_numbers_are_told() -> None:
    text = compare_means(draws(0, 0.3)).reason
    assert f"over {LOOKS[0]} draws of the step's own random numbers" in text
    assert f"(at most {MOST_L2:g} is allowed)" in text
