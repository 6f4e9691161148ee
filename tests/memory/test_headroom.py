"""The default budget: the available memory less the headroom."""

from autofit.memory.headroom import HEADROOM_BYTES, default_budget

GIB = 2**30


def test_the_default_leaves_a_headroom_and_shows_the_arithmetic() -> None:
    budget = default_budget(50 * GIB, varies=False)
    assert budget.memory_bytes == 50 * GIB - round(50 * GIB * 0.08)
    assert budget.memory_note == "50 GiB available - 4 GiB headroom (8%, at least 512 MiB) = 46 GiB"


def test_varying_shapes_get_more_headroom() -> None:
    budget = default_budget(50 * GIB, varies=True)
    assert budget.memory_bytes == 50 * GIB - round(50 * GIB * 0.08 * 1.5)
    assert "6 GiB headroom (8%, at least 512 MiB, times 1.5 for varying shapes) = 44 GiB" in budget.memory_note


def test_a_small_device_leaves_the_least_headroom() -> None:
    assert default_budget(4 * GIB, varies=False).memory_bytes == 4 * GIB - HEADROOM_BYTES


def test_the_headroom_is_at_most_half_and_says_so() -> None:
    budget = default_budget(GIB // 2, varies=False)
    assert budget.memory_bytes == GIB // 4
    assert budget.memory_note.endswith("at most half) = 256 MiB")
