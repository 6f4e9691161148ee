"""The jobs as tables and as JSON: last verdict, age, plan, and the order of the next night."""

from datetime import timedelta
from pathlib import Path

import pytest

from autofit.nightly import listing, proposals
from autofit.nightly.schedule import plan_of_night
from tests.nightly.benches import faster, recommended
from tests.nightly.nights import MachineRoom


@pytest.fixture
def room(tmp_path: Path) -> MachineRoom:
    room = MachineRoom(tmp_path)
    job = room.add("gpt")
    room.night()
    room.add("bert", accepted=None)
    proposals.propose(
        recommended(room.benches["gpt"], faster(room.benches["gpt"])),
        job.plan,
        recommended(room.benches["gpt"], room.benches["gpt"].space.baseline),
        None,
    )
    return room


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table_has_the_last_verdict_its_age_and_the_plan(room: MachineRoom) -> None:
    now = room.today() + timedelta(days=3)
    order = plan_of_night(room.file, room.history, (), now)
    assert words(listing.jobs_table(order, now, 100)) == [
        "job verdict checked plan",
        "bert never checked bert.yaml (none yet)",
        "gpt cannot compare 3 days ago gpt.yaml (new plan proposed)",
    ]
    assert all(len(line) <= 40 for line in listing.jobs_table(order, now, 40).splitlines())


def test_the_order_has_its_reasons(room: MachineRoom) -> None:
    now = room.today() + timedelta(days=3)
    order = plan_of_night(room.file, room.history, (), now)
    assert words(listing.order_table(order, 100)) == [
        "order why",
        "bert never checked: first tuning, since it has no plan",
        "gpt last checked 3 days ago (cannot compare): re-check of the accepted plan",
    ]


def test_the_document_has_both(room: MachineRoom) -> None:
    now = room.today()
    found = listing.document(plan_of_night(room.file, room.history, (), now), ["jobs.yaml, line 3: .."], now)
    assert [job["name"] for job in found["jobs"]] == ["bert", "gpt"]
    gpt = found["jobs"][1]
    assert (gpt["verdict"], gpt["nights"], gpt["has_plan"], gpt["has_proposal"]) == ("cannot compare", 1, True, True)
    assert gpt["checked_at"] == room.records("gpt")[0].at
    assert found["problems"] == ["jobs.yaml, line 3: .."]
