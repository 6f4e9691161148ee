"""Each row of the fault matrix has tests, and the page of the documentation names them with their results."""

import re
from collections import Counter
from pathlib import Path

import pytest

from scripts import fault_table
from scripts.fault_table import PAGE, line_of, marked_tests, matrix, page, results_of, verdict

ROWS, TESTS = matrix(), marked_tests()
PASSED = r"\d+ passed(; \d+ skipped: [^;]+)*"


def test_the_rows_are_those_of_the_matrix() -> None:
    assert list(ROWS) == [f"F{number:02}" for number in range(1, 61)]
    for row, about in ROWS.items():
        assert {"fault", "injected", "expected"} <= about.keys() <= {"fault", "injected", "expected", "not_tested"}, row
        assert all("|" not in text for text in about.values()), row


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_test_that_runs_without_a_gpu(row: str) -> None:
    assert [test for test in TESTS.get(row, ()) if not test.startswith(fault_table.ON_GPU)]


def test_marks_name_rows_and_none_is_overlooked() -> None:
    assert TESTS.keys() == ROWS.keys()
    marks = sum(
        len(re.findall(r"^@pytest\.mark\.fault\(", path.read_text(encoding="utf-8"), re.MULTILINE))
        for path in Path(fault_table.ROOT, "tests").rglob("test_*.py")
    )
    assert marks >= len({test for tests in TESTS.values() for test in tests})
    named = {row for path in Path(fault_table.ROOT, "tests").rglob("*.py") for row in re.findall(
        r'mark\.fault\("(\w+)"', path.read_text(encoding="utf-8"))}  # fmt: skip
    assert named <= ROWS.keys()


@pytest.mark.parametrize("row", ROWS)
def test_the_page_has_each_row_with_its_tests_and_a_good_result(row: str) -> None:
    """After a change of rows or marks: python -m scripts.fault_table."""
    start = line_of(row, ROWS[row], TESTS[row])
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row} |")]
    assert line.startswith(start)
    result, _, missing = line.removeprefix(start).removesuffix(" |").partition(". Not tested: ")
    assert re.fullmatch(PASSED, result), result
    assert missing == ROWS[row].get("not_tested", "")


def test_a_failure_a_skip_and_a_test_that_did_not_run_are_in_the_page(tmp_path: Path) -> None:
    file = tmp_path / "results.xml"
    good, bad = TESTS["F05"][0], TESTS["F60"][0]
    cases = [
        case_of(good, "[a]"), case_of(good, "[b]"), case_of(bad, "", "<failure/>"),
        case_of(TESTS["F06"][0], "", '<skipped message="needs true values"/>'),
    ]  # fmt: skip
    file.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    results = results_of([file, tmp_path / "absent.xml"])
    assert results[good] == Counter(passed=2)
    assert verdict([good, bad, "tests/other.py::test_other"], results) == "1 failed; 1 not run; 2 passed"
    assert verdict([TESTS["F06"][0]], results) == "1 skipped: needs true values"
    text = page(results)
    assert "1 failed" in next(line for line in text.splitlines() if line.startswith("| F60"))
    assert len([line for line in text.splitlines() if line.startswith("| F")]) == 60


def case_of(test: str, parameters: str, inside: str = "") -> str:
    file, _, name = test.partition("::")
    module = file.removesuffix(".py").replace("/", ".")
    return f'<testcase classname="{module}" name="{name}{parameters}">{inside}</testcase>'
