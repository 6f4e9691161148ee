"""The summary of a training has a section on evaluation, and the code that applies its plan."""

import pytest

from autofit.core.budget import Budget
from autofit.core.recommendation import Recommendation
from autofit.reports.canvas import Canvas
from autofit.reports.evaluation import evaluation_lines
from autofit.reports.summary import brief, summarize
from autofit.terminal import cells
from tests.reports.test_summary import BEST, OWN, record, sections

BUDGET = Budget(memory_bytes=2**30, memory_note="2 GiB of the training - 1 GiB that it keeps beside the model = 1 GiB")


def training(**changes: object) -> Recommendation:
    return record(evaluation=record(budget=BUDGET, **changes))


def test_a_training_without_evaluation_has_no_such_section() -> None:
    assert evaluation_lines(record(), 80) == []
    assert "evaluation" not in summarize(record())


def test_the_plan_its_speed_and_its_budget_are_shown_with_the_code() -> None:
    found = sections(summarize(training(), Canvas(width=120)))
    text = " ".join(" ".join(found["Evaluation"]).split())
    assert text == (
        "Evaluation Use micro batch 32, precision=bf16: 1,939 samples/s, 2.04x (1.90 to 2.20) the throughput of "
        "eval_loader's batch. Peak 3 MiB, beside what the training keeps. Budget 2 GiB of the training - 1 GiB that it "
        "keeps beside the model = 1 GiB."
    )
    assert found["How to use it"][-3:] == [
        "  with fit.evaluation.prepare(model, eval_loader) as step:",
        "      for batch in step.loader:",
        "          output = step(batch)",
    ]


def test_the_brief_form_has_it_too() -> None:
    assert sections(brief(training()))["Evaluation"] == sections(summarize(training()))["Evaluation"]


def test_a_batch_that_is_kept_needs_no_code() -> None:
    text = summarize(training(plan=OWN, gain=None))
    assert "Keep the batch of eval_loader: micro batch 8 x 4" in " ".join(text.split())
    assert "fit.evaluation" not in text


def test_the_baseline_of_the_training_may_be_kept_and_evaluation_changed() -> None:
    kept = record(plan=OWN, gain=None, evaluation=record(plan=BEST))
    lines = sections(summarize(kept, plan_file="a.yaml"))["How to use it"]
    assert lines[1:4] == [
        "  Nothing to apply: train as you do now.",
        '  fit = autofit.load("a.yaml")',
        "  with fit.evaluation.prepare(model, eval_loader) as step:",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_lines_fit_the_width(width: int) -> None:
    assert all(cells(line) <= width for line in summarize(training(), Canvas(width=width)).splitlines())
