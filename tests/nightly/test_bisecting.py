"""How to find the cause of a regression: each recorded change by itself, then the code."""

from autofit.core.environment import Environment
from autofit.nightly.bisecting import baseline_note, changes, steps
from autofit.nightly.comparison import Tonight
from autofit.nightly.records import HistorySegment
from tests.nightly.history_samples import HERE, PLAN, record
from tests.nightly.judged_nights import figures


def environment(**changed: object) -> Environment:
    return HERE.model_copy(update=changed)


def test_each_changed_version_is_gone_back_to_alone() -> None:
    steady = record(3, environment=environment(versions={"torch": "2.13.0", "driver": "570.1", "cudnn": "9.1"}))
    now = environment(versions={"torch": "2.14.0", "driver": "580.2", "triton": "3.5"})
    assert changes(now, steady) == (
        "cudnn: absent, was 9.1", "driver: 580.2, was 570.1", "torch: 2.14.0, was 2.13.0", "triton: 3.5, was absent",
    )  # fmt: skip
    found = steps("my job", now, steady)
    again = "then run the job again: autofit nightly JOBS --job 'my job'"
    assert found[:4] == (
        f"go back to cudnn 9.1 (now absent), {again}",
        f"go back to driver 570.1 (now 580.2), {again}",
        f"pip install torch==2.13.0 (now 2.14.0), {again}",
        f"remove triton 3.5, which is new, {again}",
    )
    assert "git bisect start BAD GOOD" in found[-1]


def test_changed_code_threads_or_nothing() -> None:
    steady = record(3, environment=environment(settings={"code": "a"}, threads=4))
    found = steps("gpt", environment(settings={"code": "b"}, threads=8), steady)
    assert found[0].startswith("set the number of threads back to 4")
    assert found[1].startswith("the workload changed (code): git log --since=")
    found = steps("gpt", HERE, record(3))
    assert found[0].startswith("autofit records no change; look at what it does not record, such as data: git log")
    assert steps("gpt", HERE, None) == ("run the job again: autofit nightly JOBS --job gpt",)
    assert changes(HERE, None) == ()


def test_the_baseline_tells_whether_both_plans_became_slower() -> None:
    def tonight(rate: float | None) -> Tonight:
        baseline = None if rate is None else figures(rate)
        return Tonight("gpt", HistorySegment.of(HERE, PLAN), HERE, figures(90.0), baseline=baseline)

    before = [record(number, baseline=figures(50.0)) for number in range(6)]
    assert baseline_note(tonight(45.0), before) == (
        "the baseline became 10.0% slower too: look first at what both plans share"
    )
    assert "look first at what only the accepted plan uses" in baseline_note(tonight(50.0), before)
    assert baseline_note(tonight(None), before) == baseline_note(tonight(45.0), before[:3]) == ""
