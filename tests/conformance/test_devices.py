"""One suite over every device: the figures agree, a limit holds and goes, nothing stays behind.

The CPU is the real one. Accelerators are simulated (tests/devices/fake_torch.py), and real where this machine has them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest
import torch

from autofit import devices
from autofit.core.measurement import Memory
from autofit.devices.base import Capability, Device
from tests.devices import fake_nvml
from tests.devices.fake_torch import MIB, Card, Machine, install

SIZE = 64 * MIB
REAL = [member for member in devices.members() if member.is_available()]
SIMULATED = [member for member in devices.members() if not member.is_host]
CASES = [(member, False) for member in REAL] + [(member, True) for member in SIMULATED]


def over(*cases: tuple[type[Device], bool]) -> pytest.MarkDecorator:
    names = [f"{member.type}{'-simulated' if simulated else ''}" for member, simulated in cases]
    return pytest.mark.parametrize("subject", cases, ids=names, indirect=True)


EVERY = over(*CASES)
ACCELERATORS = over(*(case for case in CASES if not case[0].is_host))
"""The CPU's limit is one of the whole process: it is tested in a process of its own, in tests/devices/test_cpu.py."""


@dataclass
class Subject:
    """A device under test, and how to take some of its memory."""

    device: Device
    machine: Machine | None

    def holding(self, size: int) -> AbstractContextManager[None]:
        return self._tensor(size) if self.machine is None else self.machine.cards[0].holding(size)

    @contextmanager
    def _tensor(self, size: int) -> Iterator[None]:
        kept = torch.empty(size, dtype=torch.uint8, device=self.device.torch_device)
        yield
        del kept

    def peak(self, size: int, static: int = 0) -> Memory:
        with self.device.meter(lambda: static) as reading, self.holding(size):
            pass
        assert reading.memory is not None
        return reading.memory


@pytest.fixture
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    member, simulated = request.param
    machine = None
    if simulated:
        fake_nvml.install(monkeypatch, None)
        machine = install(monkeypatch, Card())
    made = Subject(devices.choose(member.type), machine)
    yield made
    made.device.release()


@EVERY
def test_the_name_is_torchs_and_chooses_it(subject: Subject) -> None:
    device = subject.device
    assert device.torch_device.type == device.type
    assert type(devices.choose(str(device.torch_device))) is type(device)
    assert device.count() >= 1
    assert device.name()


def test_every_type_is_listed_once_and_the_host_is_the_last_choice() -> None:
    types = [member.type for member in devices.members()]
    assert len(types) == len(set(types))
    assert [member.is_host for member in devices.members()] == [False] * (len(types) - 1) + [True]


@EVERY
def test_no_more_is_available_than_there_is(subject: Subject) -> None:
    assert 0 < subject.device.available_bytes() <= subject.device.capacity_bytes()


@EVERY
def test_the_default_budget_leaves_room(subject: Subject) -> None:
    available = subject.device.available_bytes()
    budget = subject.device.budget(None, varies=False)
    assert 0 < budget.memory_bytes < available * 1.01
    assert "headroom" in budget.memory_note


@EVERY
def test_what_is_held_is_still_available_to_this_process(subject: Subject) -> None:
    before = subject.device.available_bytes()
    with subject.holding(SIZE):
        assert subject.device.available_bytes() >= before - SIZE // 2 or subject.device.is_host


@EVERY
def test_the_peak_is_all_that_was_live_at_once(subject: Subject) -> None:
    with subject.holding(SIZE):
        peak = subject.peak(SIZE, static=SIZE)
    assert 2 * SIZE <= peak.allocated_bytes <= 2 * SIZE + 8 * MIB
    assert peak.judged_bytes >= peak.allocated_bytes
    assert peak.reserved_bytes is None or peak.allocated_bytes <= peak.reserved_bytes <= peak.judged_bytes
    assert peak.footprint_bytes is None or peak.footprint_bytes >= peak.allocated_bytes
    assert (peak.static_bytes, peak.allocator_retries, peak.swallowed_ooms) == (SIZE, 0, 0)
    assert peak.judged_by


@EVERY
def test_more_memory_reads_as_more(subject: Subject) -> None:
    subject.device.release()
    less = subject.peak(SIZE).judged_bytes
    subject.device.release()
    assert SIZE * 0.9 <= subject.peak(2 * SIZE).judged_bytes - less <= SIZE * 1.1


@EVERY
def test_an_error_passes_through_the_meter_and_leaves_it_usable(subject: Subject) -> None:
    with pytest.raises(KeyError), subject.device.meter(lambda: 0):
        raise KeyError
    assert subject.peak(SIZE).allocated_bytes >= SIZE


@ACCELERATORS
def test_the_limit_holds_and_goes(subject: Subject) -> None:
    subject.device.release()
    peak = subject.peak(SIZE).judged_bytes
    subject.device.release()
    with subject.device.limit(peak + 4 * MIB, lambda: 0):
        with subject.holding(SIZE):
            pass
        with pytest.raises(RuntimeError, match="out of memory"), subject.holding(4 * SIZE):
            pass
    with subject.holding(4 * SIZE):
        pass


@ACCELERATORS
def test_a_failure_inside_the_limit_takes_it_back(subject: Subject) -> None:
    with pytest.raises(KeyError), subject.device.limit(MIB, lambda: 0):
        raise KeyError
    with subject.holding(4 * SIZE):
        pass


@EVERY
def test_work_is_timed_and_returned(subject: Subject) -> None:
    result, seconds = subject.device.timed(lambda: "done")
    assert result == "done"
    assert 0 <= seconds < 60
    empty: dict[str, str] = {}
    with pytest.raises(KeyError):
        subject.device.timed(lambda: empty["nothing"])


@EVERY
def test_released_memory_is_nobodys(subject: Subject) -> None:
    with subject.holding(4 * SIZE):
        pass
    subject.device.synchronize()
    subject.device.release()
    # Nothing of it is in a peak that begins now.
    assert subject.peak(SIZE).allocated_bytes < 2 * SIZE


@EVERY
def test_counters_are_numbers_that_only_grow(subject: Subject) -> None:
    before = subject.device.counters()
    with subject.holding(SIZE):
        after = subject.device.counters()
    assert 0 <= before.ooms <= after.ooms
    assert 0 <= before.retries <= after.retries


@EVERY
def test_what_it_can_do_and_what_it_is_are_words(subject: Subject) -> None:
    assert subject.device.capabilities() <= set(Capability)
    assert all(isinstance(text, str) and text for text in subject.device.versions().values())
    assert all(isinstance(text, str) and text for text in subject.device.caveats())
