"""The report as Markdown: what is shown, and that texts are never read as markup."""

import re
from dataclasses import replace

import pytest

from autofit.core.briefing import GateRecord
from autofit.core.outcome import Outcome, Status
from autofit.core.space import StrategyRecord
from autofit.core.trial import Trial
from autofit.reports import sources
from autofit.reports.assemble import assembled
from autofit.reports.markdown import MARK, text, to_markdown
from autofit.reports.report import LeftOut, Report
from autofit.reports.sentences import RATIOS
from tests.recorded import recorded_search
from tests.reports.samples import bounded, typical

RESULT = recorded_search(name="unet")


@pytest.fixture(scope="module")
def found() -> Report:
    return assembled(sources.of_result(RESULT))


def test_it_has_every_part_of_the_report(found: Report) -> None:
    document = to_markdown(found)
    assert document.startswith(f"{MARK}\n# autofit: train.py:make_unet\n\n**1.")
    assert re.findall(r"^## (.*)$", document, re.MULTILINE) == [
        "Why it is faster",
        "Throughput against peak memory", "Plans", "What to know", "Speed by micro batch size",
        "What the memory holds", "Memory during one optimizer step", "When each answer came", "The race",
        "Numerical checks", "Combinations that were not measured",
        "Techniques that were not searched",
        "Apply the plan", "Repeat the search", "Environment",
    ]  # fmt: skip
    assert "| **recommended** |" in document
    assert "| **baseline** |" in document
    assert "precision=bf16 | passed | cosine of the gradient 0.99991" in document
    assert "```sh\nautofit tune train.py:make_unet\n```" in document


def test_each_technique_of_the_plan_is_explained(found: Report) -> None:
    technique = StrategyRecord(name="fusing", knobs=("fuse",), about="fuses `kernels`", cost="nothing", effect="exact")
    document = to_markdown(found.model_copy(update={"strategies": (technique,)}))
    expected = "## What each strategy does\n\n- fusing: fuses \\`kernels\\`; costs nothing; results are the same\n"
    assert expected in document


def test_the_plan_for_evaluation_is_a_list_of_its_own(found: Report) -> None:
    assert "## Evaluation" not in to_markdown(found)
    document = to_markdown(found.model_copy(update={"evaluation": ("Use micro batch 512.", "Budget 4 GiB.")}))
    assert "## Evaluation\n\n- Use micro batch 512.\n- Budget 4 GiB.\n" in document


def test_a_baseline_that_is_recommended_is_named_as_both(found: Report) -> None:
    assert found.recommended is not None
    own = found.recommended.model_copy(update={"is_baseline": True})
    assert "| **recommended, baseline** |" in to_markdown(found.model_copy(update={"rows": (own, *found.rows[1:])}))


def test_every_row_of_a_table_has_as_many_cells_as_its_head(found: Report) -> None:
    for table in re.findall(r"(?:^\|.*\|\n)+", to_markdown(found), re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(counts) == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a | b", r"a \| b"),
        ("</script><b>", "&lt;/script&gt;&lt;b&gt;"),
        ("`code` *bold* [a](b)", r"\`code\` \*bold\* \[a\](b)"),
        ("memory_format=x _it_", r"memory_format=x \_it\_"),
        ("# title", r"\#<!-- --> title"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("0.93x", "0.93x"),
        ("@user and #12", "@<!-- -->user and #<!-- -->12"),
        ("https://host", "https:<!-- -->//host"),
        ("two\nlines\n\n# title", "two lines #<!-- --> title"),
        ("a\\|b $x$", r"a\\\|b \$x\$"),
    ],
)
def test_texts_are_never_markup(given: str, shown: str) -> None:
    assert text(given) == shown


def test_long_texts_are_cut() -> None:
    assert len(text("x" * 10_000)) == 160


def test_hostile_texts_leave_the_document_whole(found: Report) -> None:
    hostile = "``` </script> | \n# x " + 10_000 * "y"
    bad = [
        Trial(
            number=900 + number,
            plan=RESULT.trials[0].plan.replace(micro_batch_size=300 + number, precision=hostile),
            outcome=Outcome(status=Status.USER_ERROR, reason=hostile),
        )
        for number in range(500)
    ]
    result = replace(RESULT, trials=(*RESULT.trials, *bad))
    document = to_markdown(assembled(sources.of_result(result)).model_copy(update={"apply_code": "x = '```'\n"}))
    assert len(document) < 65_536
    assert "</script>" not in document
    assert "and 475 more plans" in document
    assert "````python\nx = '```'\n````" in document
    assert document.count("\n# ") == 1


def test_a_report_without_an_answer_is_short_and_says_why(found: Report) -> None:
    evidence = RESULT.evidence.model_copy(
        update={
            "answer": None, "standings": (), "failure": "no plan fits", "failure_code": 3, "profile": None,
            "race": (),
        }
    )  # fmt: skip
    document = to_markdown(assembled(sources.of_result(replace(RESULT, answer=None, evidence=evidence))))
    assert "**No plan is recommended: no plan fits the budget of " in document
    assert "Apply the plan" not in document


def test_a_long_list_of_combinations_is_cut_with_a_count(found: Report) -> None:
    many = tuple(LeftOut(label=f"combination {n}", basis="assumed", reason="slow") for n in range(50))
    document = to_markdown(found.model_copy(update={"left_out": many}))
    assert len(re.findall(r"^\| combination [0-9]", document, re.MULTILINE)) == 10
    assert "and 40 more combinations" in document
    assert "| closest plan | evidence | reason |" in document  # as in HTML


def test_what_ratios_compare_is_said_once(found: Report) -> None:
    assert to_markdown(found).count(RATIOS) == 1
    assert RATIOS not in to_markdown(found.model_copy(update={"race": ()}))


def test_checks_that_could_not_be_run_and_times_are_as_in_html(found: Report) -> None:
    gate = GateRecord(name="accumulation", passed=False, reason="could not be checked: the gradient is zero")
    document = to_markdown(
        found.model_copy(update={"gates": (gate,), "created": "2026-11-24T20:11:08.123456+00:00", "counts": {"a": 1}})
    )
    assert "| accumulation | not checked |" in document
    assert "| created | 2026-11-24 20:11:08 UTC |" in document
    assert f"| trials | 1 trial of {len(found.rows)} plans: 1 a" in document


def test_upper_bounds_are_labelled() -> None:
    found, plain = to_markdown(bounded()), to_markdown(typical())
    assert "| recommended plan | baseline: upper bound (sizes depend on the data) |" in found
    assert "upper bound" not in plain
