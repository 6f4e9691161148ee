"""Recording on the devices that are here: each request with its bytes, in order; nothing stays switched on."""

import os

import pytest
import torch

from autofit import devices
from autofit.core.errors import Untraceable
from autofit.devices.base import AllocatorRequest, Device

KIB = 1024
CPU = devices.choose("cpu")


def test_requests_and_marks_come_in_order_with_their_bytes() -> None:
    with CPU.recording() as recording:
        first = torch.empty(100 * KIB, dtype=torch.uint8)
        recording.mark()
        second = torch.empty(50 * KIB, dtype=torch.uint8)
        addresses = first.data_ptr(), second.data_ptr()
        del first
        recording.mark()
        del second
    assert recording.requests == [
        AllocatorRequest(addresses[0], 100 * KIB),
        AllocatorRequest(addresses[1], 50 * KIB),
        AllocatorRequest(addresses[0], -100 * KIB),
        AllocatorRequest(addresses[1], -50 * KIB),
    ]
    assert recording.marks == [1, 3]
    assert recording.initial is None


def test_what_an_operator_takes_for_the_moment_is_recorded_too() -> None:
    lstm, batch = torch.nn.LSTM(8, 16), torch.randn(4, 2, 8)
    with CPU.recording() as recording:
        out = lstm(batch)
    live = sum(request.size_bytes for request in recording.requests)
    assert sum(t.untyped_storage().nbytes() for t in (out[0], *out[1])) <= live
    assert len(recording.requests) > 10


def test_what_was_there_before_is_given_back_unseen() -> None:
    before = torch.empty(KIB)
    with CPU.recording() as recording:
        del before
    assert recording.requests == []


def test_what_torch_still_knows_from_an_earlier_record_is_left_out() -> None:
    """A block that is released unrecorded stays known to torch. Whatever gets its address later inherits its size."""
    with CPU.recording():
        earlier = [torch.empty(KIB) for _ in range(200)]
    known = {tensor.data_ptr() for tensor in earlier}
    del earlier
    later = [torch.empty(KIB) for _ in range(400)]
    inherited = sum(tensor.data_ptr() in known for tensor in later)
    assert inherited, "no address was used again"
    with CPU.recording() as recording:
        del later
        kept = torch.empty(KIB)
    assert recording.requests == [AllocatorRequest(kept.data_ptr(), 4 * KIB)]


def test_nothing_is_recorded_beside_another_profiler_which_goes_on() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        with pytest.raises(Untraceable, match="another profiler is running"), CPU.recording():
            pass
        torch.ones(3).sum()
    assert any(event.key == "aten::sum" for event in profile.key_averages())


def test_an_error_inside_passes_through_and_the_profiler_ends() -> None:
    with pytest.raises(ValueError, match="mine"), CPU.recording():
        raise ValueError("mine")
    with CPU.recording() as recording:
        torch.empty(KIB)
    assert len(recording.requests) == 2


@pytest.mark.parametrize("level", [None, "3"])
def test_what_the_profiler_prints_is_the_users_choice(level: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", level)
    with CPU.recording():
        pass
    assert os.environ.get("KINETO_LOG_LEVEL") == level


@pytest.mark.parametrize("member", [m for m in devices.members() if m.type in ("mps", "xpu")])
def test_a_device_without_a_record_says_so(member: type[Device]) -> None:
    with pytest.raises(Untraceable, match=f"{member.type} keeps no record"):
        member(0).recording()
