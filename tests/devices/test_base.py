"""The memory budget: what may be asked for, and the arithmetic that is shown."""

import reprlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from autofit.core.errors import UsageError
from autofit.devices import base
from autofit.devices.base import Counters, Device, Reading
from autofit.memory.headroom import default_budget

GIB = 2**30


class Sized(Device):
    """A device that is nothing but a capacity."""

    type = "cpu"

    def __init__(self, capacity: int, available: int) -> None:
        super().__init__()
        self.capacity, self.available = capacity, available

    @classmethod
    def is_available(cls) -> bool:
        return True

    def name(self) -> str:
        return "Test Device 1"

    def capacity_bytes(self) -> int:
        return self.capacity

    def available_bytes(self) -> int:
        return self.available

    def capabilities(self) -> frozenset[str]:
        return frozenset()

    def meter(self, static: Callable[[], int]) -> AbstractContextManager[Reading]:
        raise NotImplementedError


DEVICE = Sized(capacity=80 * GIB, available=50 * GIB)


@pytest.mark.parametrize(
    ("wanted", "expected", "note"),
    [
        ("20GiB", 20 * GIB, "20 GiB as requested"),
        (3 * GIB, 3 * GIB, "3 GiB as requested"),
        (float(3 * GIB), 3 * GIB, "3 GiB as requested"),
        (0.5, 40 * GIB, "50% of the capacity 80 GiB"),
        (1.0, 80 * GIB, "100% of the capacity 80 GiB"),
        ("80GiB", 80 * GIB, "80 GiB as requested"),
    ],
)
def test_a_budget_is_bytes_a_text_or_a_fraction(wanted: float | str, expected: int, note: str) -> None:
    budget = DEVICE.budget(wanted, varies=False)
    assert (budget.memory_bytes, budget.memory_note) == (expected, note)


def test_the_default_budget_is_the_available_memory_less_the_headroom() -> None:
    assert DEVICE.budget(None, varies=False) == default_budget(50 * GIB, varies=False)
    assert DEVICE.budget(None, varies=True) == default_budget(50 * GIB, varies=True)


@pytest.mark.parametrize(
    ("wanted", "found", "following"),
    [
        ("81GiB", "81 GiB is more than the 80 GiB of Test Device 1", "pass at most that, or leave it out"),
        (81 * GIB, "is more than the 80 GiB", "pass at most that"),
        ("lots", "cannot read 'lots' as memory", '"20GiB"'),
        ("20 parsecs", "cannot read '20 parsecs'", "a number of bytes"),
        (1.5, "memory_budget is 1.5", "expected a fraction up to 1"),
        (-0.5, "memory_budget is -0.5", "expected a fraction up to 1"),
        (0, "more than zero bytes", '"20GiB"'),
        (0.0, "more than zero bytes", '"20GiB"'),
        ("1e400GiB", "found '1e400GiB' as memory, which is too large", "expected"),
        (10**400, "as memory", "at most 8388608 TiB"),
        (float("nan"), "memory_budget is nan", "expected a fraction"),
        (float("inf"), "memory_budget is inf", "expected a fraction"),
    ],
    ids=reprlib.repr,
)
def test_what_cannot_be_a_budget_is_refused(wanted: float | str, found: str, following: str) -> None:
    with pytest.raises(UsageError) as error:
        DEVICE.budget(wanted, varies=False)
    assert found in str(error.value)
    assert following in str(error.value)


def test_a_device_without_counters_or_limit_says_nothing_and_forbids_nothing() -> None:
    assert DEVICE.counters() == Counters(0, 0)
    with DEVICE.limit(1, lambda: 0):
        pass
    assert str(DEVICE.torch_device) == "cpu"


def test_work_is_timed_between_two_synchronisations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device still has to do before is not counted; what it has to do after is."""
    now = [0.0]
    queue = [5.0]

    class Queued(Sized):
        def synchronize(self) -> None:
            now[0] += sum(queue)
            queue.clear()

    def work() -> str:
        now[0] += 1.0
        queue.append(2.0)
        return "done"

    monkeypatch.setattr(base, "perf_counter", lambda: now[0])
    assert Queued(GIB, GIB).timed(work) == ("done", 3.0)
