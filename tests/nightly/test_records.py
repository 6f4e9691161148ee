"""Records of a night: a segment follows its environment, and a record survives its file."""

from autofit.core.environment import Environment
from autofit.core.plan import Plan
from autofit.nightly.records import Figures, HistorySegment, NightRecord, Verdict, VerdictKind

PLAN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1})


def _environment(**changes: object) -> Environment:
    base = Environment(
        workload="w1", device_type="cuda", device_name="H100", capacity_bytes=80 * 2**30,
        versions={"torch": "2.13.0", "driver": "570.1", "python": "3.11.9"},
    )  # fmt: skip
    return base.model_copy(update=changes)


def test_a_segment_changes_with_workload_device_driver_torch_and_plan_and_with_nothing_else() -> None:
    first = HistorySegment.of(_environment(), PLAN)
    other_python = _environment(versions={"torch": "2.13.0", "driver": "570.1", "python": "3.12.1"})
    assert HistorySegment.of(other_python, PLAN) == first
    driver = HistorySegment.of(_environment(versions={"torch": "2.13.0", "driver": "580.2"}), PLAN)
    assert driver.changes(first) == ("driver: 580.2, was 570.1",)
    assert HistorySegment.of(_environment(workload="w2"), PLAN).changes(first) == ("workload: w2, was w1",)
    assert len(HistorySegment.of(_environment(), PLAN.replace(micro_batch_size=16)).changes(first)) == 1


def test_the_throughput_of_a_night_is_the_median_of_its_blocks() -> None:
    assert Figures(plan=PLAN, rates_per_s=(10.0, 30.0, 11.0), peak_bytes=5).rate_per_s == 11.0


def test_a_record_survives_its_text() -> None:
    record = NightRecord(
        id="a", job="gpt", night="2026-11-25T01:00:00+00:00", at="2026-11-25T01:02:00+00:00",
        environment=_environment(), segment=HistorySegment.of(_environment(), PLAN),
        accepted=Figures(plan=PLAN, rates_per_s=(1.5, 1.6), peak_bytes=7),
        verdict=Verdict(kind=VerdictKind.STEADY, reason="within the noise of 14 nights", compared_nights=14),
    )  # fmt: skip
    text = record.model_dump_json(by_alias=True)
    assert NightRecord.model_validate_json(text) == record
    assert '"schema":"autofit.night/1"' in text
