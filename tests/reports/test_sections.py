"""What a page and a Markdown document of a report share."""

from autofit.core.briefing import GateRecord
from autofit.reports.sections import environment, gates, left_out, refused
from tests.reports.samples import typical


def test_a_check_that_could_not_be_run_has_not_failed() -> None:
    reasons = {
        "could not be checked: the gradient is zero on this batch": "not checked",
        "accumulation could not be checked: noise 0.3. Use more samples": "not checked",
        "the gradient is not finite": "failed",
    }
    found = [GateRecord(name="accumulation", passed=False, reason=reason) for reason in reasons]
    found.append(GateRecord(name="accumulation", passed=True, reason="could not be checked"))
    verdicts = [row[1] for row in gates(typical(gates=tuple(found))).rows]
    assert verdicts == [*reasons.values(), "passed"]


def test_each_table_has_a_row_for_each_record() -> None:
    report = typical()
    for table, records in (
        (gates(report), report.gates), (left_out(report), report.left_out), (refused(report), report.refused)
    ):  # fmt: skip
        assert len(table.rows) == len(records) > 0
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_facts_without_a_value_are_left_out() -> None:
    report = typical()
    facts = dict(environment(report))
    assert facts["answers"].startswith("1.00x after 5.2 s, ")
    assert facts["device"].startswith("NVIDIA RTX 4090 (cuda), ")
    assert "stopped" not in dict(environment(report.model_copy(update={"stopped": ""})))
    assert all(facts.values())
