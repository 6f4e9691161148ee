"""Jobs that several machines share: each is checked by one, on the device of its records."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest

from autofit.core.briefing import Briefing
from autofit.core.errors import Busy, DeviceMissing, StudyError, UsageError, UserCodeError
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly import night, stored_nights
from autofit.nightly.claims import CHECKED, OneMachine, SharedClaims
from autofit.nightly.exit_codes import REGRESSION
from autofit.nightly.history import History
from autofit.nightly.job import JobsFile
from autofit.nightly.records import VerdictKind
from autofit.nightly.result import NightResult
from autofit.nightly.stored_nights import StoredNights
from autofit.study.fleet import Fleet
from autofit.study.location import Place
from tests.nightly.nights import MachineRoom
from tests.study.databases import url_in


@dataclass
class SharedRoom(MachineRoom):
    """A room whose history is in a database that others share."""

    said: list[str] = field(default_factory=list)

    @property
    def file(self) -> JobsFile:
        return super().file.model_copy(update={"history": url_in(self.folder)})

    @property
    def place(self) -> Place:
        return Place.of(self.file.history)


@pytest.fixture
def room(tmp_path: Path) -> SharedRoom:
    room = SharedRoom(tmp_path)
    room.add("gpt")
    room.add("bert")
    return room


@contextmanager
def machine(room: SharedRoom) -> Iterator[SharedClaims]:
    """Gives the claims of one more machine."""
    with Fleet.opened(room.place) as fleet:
        yield SharedClaims(fleet, room.history, room.today, room.said.append)


def test_a_job_belongs_to_the_machine_that_claims_it_first(room: SharedRoom) -> None:
    with machine(room) as one, machine(room) as other:
        with one.claim("gpt") as first, other.claim("gpt") as second, other.claim("bert") as third:
            assert (first, second, third) == ("", "another machine is checking it", "")
        with other.claim("gpt") as free:
            assert free == ""


def test_a_job_that_was_just_checked_is_left_out_and_later_is_due_again(room: SharedRoom) -> None:
    room.night(share=True)
    with machine(room) as other:
        with other.claim("gpt") as taken:
            assert taken == f"it was checked at {room.records('gpt')[-1].at}"
        room.days += (CHECKED + timedelta(minutes=1)) / timedelta(days=1)
        with other.claim("gpt") as due:
            assert due == ""


def test_a_night_leaves_what_another_machine_has(room: SharedRoom) -> None:
    with machine(room) as other, other.claim("gpt"):
        result = room.night(share=True)
    assert [record.job for record in result.records] == ["bert"]
    assert dict(result.unchecked) == {"gpt": "another machine is checking it"}
    assert result.exit_code == 0
    assert "gpt: left to another machine: another machine is checking it" in room.said


def test_a_machine_that_comes_late_has_nothing_to_do(room: SharedRoom) -> None:
    room.night(share=True)
    room.days -= 1
    late = room.night(share=True)
    assert late.records == ()
    assert late.exit_code == 0
    assert all("it was checked at" in why for why in late.unchecked.values())


def test_a_job_that_is_named_is_checked_again_however_recent_its_record(room: SharedRoom) -> None:
    room.night(share=True)
    room.days -= 1
    named = room.night(share=True, only=("gpt",))
    assert [record.job for record in named.records] == ["gpt"]


def test_a_job_that_failed_on_one_machine_is_tried_by_a_second_and_by_no_third(room: SharedRoom) -> None:
    room.errors["gpt"] = UsageError("the package timm is missing on this machine.")
    room.night(share=True)
    room.days -= 1
    second = room.night(share=True)
    assert [record.verdict.kind for record in second.records] == [VerdictKind.ERROR]
    assert "it was checked at" in second.unchecked["bert"]
    room.days -= 1
    third = room.night(share=True)
    assert third.records == ()
    assert third.unchecked["gpt"].startswith("its last 2 checks ended with an error, the latest at ")
    del room.errors["gpt"]
    healthy = room.night(share=True)
    assert [record.job for record in healthy.records] == ["bert", "gpt"]  # a day later, both are due


def test_the_host_has_the_records_and_the_exit_code_of_what_others_checked(room: SharedRoom) -> None:
    for _ in range(8):
        room.night(share=True)
    room.benches["gpt"].compute_s *= 1.5  # slower than in all nights before
    worker = room.night(share=True)
    assert worker.exit_code == REGRESSION
    room.days -= 1
    host = room.night(share=True, host="jobs.yaml")
    assert {record.job: record.verdict.kind for record in host.records} == {
        "gpt": VerdictKind.REGRESSION, "bert": VerdictKind.STEADY
    }  # fmt: skip
    assert host.unchecked == {}
    assert host.exit_code == REGRESSION


def test_the_host_has_the_exit_code_of_an_error_elsewhere(room: SharedRoom) -> None:
    room.errors["gpt"] = UserCodeError("the function make_workload failed: ModuleNotFoundError", "")
    for _ in range(2):
        assert room.night(share=True).exit_code == UserCodeError.exit_code
        room.days -= 1
    host = room.night(share=True, host="jobs.yaml")
    assert host.records[-1].verdict.kind is VerdictKind.ERROR
    assert host.exit_code == UserCodeError.exit_code


def test_the_host_waits_for_what_others_are_checking(room: SharedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:
        other = held.enter_context(machine(room))
        claim = held.enter_context(ExitStack())
        assert claim.enter_context(other.claim("gpt")) == ""
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                claim.close()  # as if the other machine had died

        monkeypatch.setattr("autofit.nightly.night.time.sleep", wait)
        result = room.night(share=True, host="jobs.yaml")
    assert waited[:3] == [night.WAIT_S] * 3
    assert [record.job for record in result.records] == ["bert", "gpt"]
    assert result.unchecked == {}
    assert sum("left to another machine" in text for text in room.said) == 1


def test_a_job_whose_device_no_machine_has_is_not_a_success(room: SharedRoom) -> None:
    room.errors["gpt"] = DeviceMissing("no device 'cuda:7' here; available: cpu.")
    assert room.night(share=True).exit_code == 0
    room.days -= 1
    host = room.night(share=True, host="jobs.yaml")
    assert host.exit_code == Busy.exit_code
    assert "cuda:7" in host.unchecked["gpt"]
    assert [record.job for record in host.records] == ["bert"]


def test_what_is_known_stays_known_if_the_database_goes_away_in_a_shared_night(
    room: SharedRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        room.night(share=True)

    def away(place: Place) -> StoredNights:
        return StoredNights(away="connection refused")

    def leave(job: str, plan: Plan, purpose: Purpose) -> None:
        monkeypatch.setattr(stored_nights, "read", away)

    room.before_run = leave
    result = room.night(share=True)
    assert all("first night" not in record.verdict.reason for record in result.records)
    assert {record.verdict.kind for record in result.records} == {VerdictKind.STEADY}


def test_a_job_stays_on_the_device_of_its_records(room: SharedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    first = room.night(share=True)
    assert [record.verdict.kind for record in first.records] == [VerdictKind.CANNOT_COMPARE] * 2
    whole = MachineRoom.briefing

    def other_device(self: MachineRoom, name: str) -> Briefing:
        briefing = whole(self, name)
        environment = briefing.environment.model_copy(update={"device_name": "Fake 2"})
        return briefing.model_copy(update={"environment": environment})

    monkeypatch.setattr(MachineRoom, "briefing", other_device)
    second = room.night(share=True)
    assert second.records == ()
    assert set(second.unchecked.values()) == {"its records were measured on Fake 1; this machine has Fake 2"}
    assert second.exit_code == 0
    alone = room.night()
    assert [record.verdict.kind for record in alone.records] == [VerdictKind.CANNOT_COMPARE] * 2


def test_a_night_is_not_shared_if_the_database_is_away(room: SharedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(place: Place) -> Fleet:
        raise StudyError("the database is away.")

    monkeypatch.setattr(Fleet, "opened", away)
    result = room.night(share=True)
    assert [record.job for record in result.records] == ["gpt", "bert"]
    assert "the database is away. The jobs are not shared." in room.said


def test_a_claim_that_cannot_be_written_leaves_the_job_here(room: SharedRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    room.night(share=True)
    room.days += 1

    def away(self: Fleet, attributes: dict[str, object]) -> Iterator[int]:
        raise StudyError("the database is away.")
        yield 0

    monkeypatch.setattr(Fleet, "_member", contextmanager(away))
    with machine(room) as claims, claims.claim("gpt") as taken:
        assert taken == ""
    assert "the database is away. The job is not shared." in room.said


@pytest.mark.parametrize(("device", "visible"), [("cuda:1", None), (None, "1")])
def test_the_devices_of_one_machine_share_a_night(
    device: str | None, visible: str | None, room: SharedRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found: list[NightResult | Busy] = []

    def on_another_device(job: str, plan: Plan, purpose: Purpose) -> None:
        room.before_run = lambda job, plan, purpose: None
        with monkeypatch.context() as patched:
            if visible is not None:
                patched.setenv("CUDA_VISIBLE_DEVICES", visible)
            beside = Thread(target=lambda: found.append(room.night(share=True, device=device)))
            beside.start()
            beside.join()

    room.before_run = on_another_device
    result = room.night(share=True)
    assert [record.job for record in result.records] == ["gpt"]
    assert isinstance(found[0], NightResult)
    assert [record.job for record in found[0].records] == ["bert"]
    assert found[0].unchecked == {"gpt": "another machine is checking it"}


def test_one_device_checks_a_shared_night_once_at_a_time(room: SharedRoom) -> None:
    found: list[str] = []

    def again() -> None:
        with pytest.raises(Busy) as refused:
            room.night(share=True)
        found.append(str(refused.value))

    def on_the_same_device(job: str, plan: Plan, purpose: Purpose) -> None:
        room.before_run = lambda job, plan, purpose: None
        beside = Thread(target=again)
        beside.start()
        beside.join()

    room.before_run = on_the_same_device
    room.night(share=True)
    assert "jobs.yaml is in use" in found[0]


def test_workers_are_invited_to_a_night(room: SharedRoom) -> None:
    seen: list[dict[int, str]] = []

    def look(text: str) -> None:
        with Fleet.opened(room.place) as fleet:
            seen.append(fleet.nights())

    room.night(share=True, host="jobs/nightly.yaml", say=look)
    assert {jobs for nights in seen for jobs in nights.values()} == {"jobs/nightly.yaml"}
    with Fleet.opened(room.place) as fleet:
        assert fleet.nights() == {}


def test_alone_every_job_is_checked_here(room: SharedRoom) -> None:
    with OneMachine().claim("gpt") as taken:
        assert taken == ""
    assert not OneMachine().shared
    assert isinstance(room.history, History)
