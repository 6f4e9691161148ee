"""The answer in one sentence, why a search has none, and numbers, results and times in words."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    Busy,
    DevicePoisoned,
    NothingFits,
    UserCodeError,
    WorkloadError,
)
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose, Trial
from autofit.core.units import short_number
from autofit.reports import sources
from autofit.reports.assemble import assembled
from autofit.reports.canvas import Canvas
from autofit.reports.markdown import to_markdown
from autofit.reports.page import card, render
from autofit.reports.sentences import (
    answer_times,
    batch_change,
    cause,
    chosen,
    contradicting_rate,
    counted,
    difference,
    failed_headline,
    headline,
    instant,
    moment,
    runs,
    value_in_words,
)
from autofit.reports.summary import summarize
from autofit.search.evidence import NOT_SETTLED, PROOF_CUT_OFF, PROOF_FAILED
from autofit.strategies.base import Offer
from autofit.strategies.compilation import Compilation
from tests.recorded import recorded_search
from tests.reports.samples import typical

RESULT = recorded_search(name="unet")
EVIDENCE = RESULT.evidence


def answer() -> Answer:
    """Returns an answer that is not the baseline, without a contradicting proof."""
    r = RESULT.answer
    assert r is not None
    assert r.plan != r.baseline.plan
    return r.model_copy(update={"rate_per_s": r.objective.score(r.proof)})


def test_the_headline_is_one_sentence_on_what_the_plan_brings() -> None:
    r = answer()
    for value, expected in (
        (1.316, "1.32x faster: 32% more samples per second."),
        (12.84, "12.8x faster: 1,184% more samples per second."),
        (0.8, "0.80x of the baseline's throughput: 20% fewer samples per second."),
    ):
        gain = Ratio(value=value, low=value, high=value, pairs=9)
        assert headline(r.model_copy(update={"gain": gain})) == expected


def test_a_gain_that_did_not_race_is_said_to_be_not_compared_side_by_side() -> None:
    gain = Ratio(value=1.316, low=1.2, high=1.4)
    expected = "About 1.32x faster: 32% more samples per second, not compared side by side."
    assert headline(answer().model_copy(update={"gain": gain})) == expected


def test_a_batch_that_stays_is_not_told_as_a_change() -> None:
    r = answer()
    batch = {name: r.baseline.plan.values[name] for name in ("micro_batch_size", "accumulation_steps")}
    found = chosen(r.model_copy(update={"plan": r.plan.replace(**batch)}))
    assert ", with the batch as it is. Its peak" in found


def test_values_are_said_in_words() -> None:
    for name, value, expected in (
        ("precision", "bf16", "bf16 precision"),
        ("optimizer_implementation", "fused", "fused optimizer implementation"),
        ("memory_format", "channels_last", "channels last memory format"),
        ("checkpointed_blocks", 1, "1 checkpointed blocks"),
        ("compile", "blocks", "compiled blocks"),
        ("compile", "other", "other compile"),
        ("optimizer_in_backward", True, "optimizer in backward"),
        ("packing", False, "no packing"),
    ):
        assert value_in_words(name, value, [Compilation().to_record(Offer())]) == expected


def test_the_plan_in_words_says_how_the_global_batch_changes() -> None:
    r = answer()
    grown = r.plan.replace(micro_batch_size=r.baseline.plan.global_batch_size * 3, accumulation_steps=1)
    before = r.baseline.plan.global_batch_size
    found = chosen(r.model_copy(update={"plan": grown}))
    assert f"; the global batch grows from {before} to {3 * before}. Its peak is " in found
    same = r.plan.replace(micro_batch_size=before, accumulation_steps=1)
    assert "global batch" not in chosen(r.model_copy(update={"plan": same}))
    assert batch_change(1024, 64) == "; the global batch shrinks from 1,024 to 64"


def test_a_gain_within_the_noise_is_said_to_be_so() -> None:
    r = answer()
    doubtful = Ratio(value=1.31, low=0.97, high=1.75)
    found = headline(r.model_copy(update={"gain": doubtful}))
    assert "1.31x (0.97 to 1.75) of the baseline's throughput, which is within the noise." in found
    assert "noise" not in headline(r.model_copy(update={"gain": Ratio(value=1.31, low=1.2, high=1.4)}))


def test_a_gain_that_is_unknown_is_not_a_baseline_that_fails() -> None:
    r = answer().model_copy(update={"gain": None})
    assert "its gain over the baseline is unknown" in headline(r)
    failed = r.baseline.model_copy(update={"outcome": Outcome(status=Status.OUT_OF_MEMORY, reason="no memory")})
    assert "the baseline does not run here" in headline(r.model_copy(update={"baseline": failed}))
    over = r.baseline.outcome.model_copy(update={"status": Status.OVER_BUDGET, "reason": "its peak is above"})
    large = r.baseline.model_copy(update={"outcome": over})
    assert "the baseline exceeds the budget" in headline(r.model_copy(update={"baseline": large}))


def test_a_proof_far_from_the_throughput_that_is_shown_is_in_the_headline() -> None:
    r = answer()
    assert contradicting_rate(r) is None
    assert "proof" not in headline(r)
    faster = r.model_copy(update={"rate_per_s": 2 * (r.rate_per_s or 0.0)})
    assert contradicting_rate(faster) == pytest.approx(r.rate_per_s)
    assert "Its proof ran at " in headline(faster)
    worst = r.proof.model_copy(update={"warmup_times_s": ()})
    assert contradicting_rate(faster.model_copy(update={"proof": worst})) is None


def test_a_gain_that_the_proof_contradicts_is_in_no_form_of_the_answer() -> None:
    """Not even where caveats are folded away. Both throughputs are there instead."""
    r = answer()
    doubted = r.model_copy(update={"rate_per_s": 4 * (r.rate_per_s or 0.0), "gain": None})
    page = assembled(sources.of_answer(doubted))
    why = "gain over the baseline is unknown, because the proof contradicts the probe"
    for text in (headline(doubted), summarize(doubted, Canvas(400)), card(doubted), to_markdown(page), render(page)):
        assert why in text
        assert short_number(r.objective.score(r.proof)) in text
    assert "of the baseline&#x27;s throughput" not in card(doubted)
    assert "the baseline was not measured" not in render(page)


def test_a_gain_of_a_race_whose_proof_contradicts_it_never_stands_without_the_doubt() -> None:
    r = answer()
    doubted = r.model_copy(update={"rate_per_s": 4 * (r.rate_per_s or 0.0)})
    assert f"{doubted.gain} of the baseline" in card(doubted).replace("&#x27;", "'")
    assert "Its proof ran at " in card(doubted)
    assert "proof" not in card(r)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NothingFits("no plan fits into 1 GiB."), "no plan fits the budget of "),
        (UserCodeError("your code failed in forward."), "the user's code failed"),
        (BudgetSpent("the search ended before any plan was measured"), "the time or trial limit was reached first"),
        (DevicePoisoned("the device answers every call with an error"), "the device stopped answering"),
        (WorkloadError("no plan could be measured, and memory was not the reason."), "memory was not the only reason"),
        (Busy("used"), "another tuner uses"),
    ],
)
def test_the_cause_is_that_of_the_error(error: AutofitError, expected: str) -> None:
    known = EVIDENCE.model_copy(update={"failure": str(error), "failure_code": error.exit_code})
    assert expected in cause(known)


def test_a_search_that_was_interrupted_or_died_says_so() -> None:
    open_one = EVIDENCE.model_copy(update={"failure": "", "answer": None})
    assert cause(open_one) == "the search did not end"
    last = Trial(number=1, plan=EVIDENCE.baseline, outcome=Outcome(status=Status.INTERRUPTED, reason="Ctrl-C"))
    assert cause(open_one, (last,)) == "the search was interrupted"
    assert "does not have one" in cause(None)


def test_a_failed_search_has_a_short_headline_in_words_and_its_whole_message_below() -> None:
    message = "the search ended before any plan was measured inside the budget: spent. " + "x" * 900 + " LAST."
    plan = EVIDENCE.baseline.replace(micro_batch_size=4, accumulation_steps=4)
    own = Trial(number=1, plan=plan, outcome=Outcome(status=Status.TIMED_OUT, reason="not finished"))
    known = EVIDENCE.model_copy(
        update={"failure": message, "failure_code": 7, "answer": None, "baseline": plan, "standings": ()}
    )
    expected = (
        "No plan is recommended: the time or trial limit was reached first. The baseline, micro batch 4 x 4, timed out."
    )
    assert failed_headline(known, (own,)) == expected
    report = assembled(sources.of_result(replace(RESULT, answer=None, evidence=known, trials=(own,))))
    assert (report.headline, report.feasible) == (expected, False)
    for text in (render(report), to_markdown(report)):
        assert text.index(expected) < text.index("LAST.")
    assert "no plan fits the budget" not in render(report)


def test_a_baseline_whose_proof_failed_keeps_its_measurement_and_the_headline_names_the_proof() -> None:
    probe = next(t for t in RESULT.trials if t.plan == EVIDENCE.baseline and t.outcome.measured)
    late = Outcome(status=Status.TIMED_OUT, reason="not finished after 9 s")
    proof = Trial(number=99, plan=probe.plan, outcome=late, purpose=Purpose.PROOF)
    update = {"failure": "time ran out", "failure_code": 7, "answer": None, "standings": ()}
    known = EVIDENCE.model_copy(update=update)
    assert " was measured, but its proof timed out." in failed_headline(known, (probe, proof))
    assert "was measured, but" not in failed_headline(known, (proof,))
    report = assembled(sources.of_result(replace(RESULT, answer=None, evidence=known, trials=(probe, proof))))
    assert " was measured, but its proof timed out." in report.headline
    (row,) = [row for row in report.rows if row.is_baseline]
    assert (row.status, row.reason) == ("measured", "its proof was not completed: timed out, not finished after 9 s")
    assert row.rate_per_s
    for text in (render(report), to_markdown(report)):
        assert "its proof was not completed: timed out" in text


def test_a_faster_plan_whose_proof_failed_is_not_a_plan_that_is_not_faster() -> None:
    r = answer()
    faster = Candidate(plan=r.plan, outcome=r.baseline.outcome, note=f"{PROOF_FAILED} (over budget: needs more)")
    kept = r.model_copy(update={"plan": r.baseline.plan, "alternatives": ()})
    failed, cut_off, unchecked = (
        kept.model_copy(update={"alternatives": (faster.model_copy(update={"note": note}),)})
        for note in (
            faster.note,
            f"{PROOF_CUT_OFF}: timed out, not finished in 9 s",
            f"{NOT_SETTLED} its gradient could not be checked in time",
        )
    )
    seemed = faster.model_copy(update={"note": "not faster", "gain": Ratio(value=1.9, low=0.9, high=4.0)})
    noisy = kept.model_copy(update={"alternatives": (seemed,)})
    for one, expected in (
        (kept, "Nothing that was tried is faster."),
        (failed, "No faster plan could be proven."),
        (cut_off, "No faster plan could be proven."),
        (unchecked, "No faster plan could be proven and checked."),
        (noisy, "Nothing that was tried is faster beyond the noise."),
    ):
        assert expected in headline(one)
        assert expected in " ".join(summarize(one).split())


def test_one_thing_is_singular_and_thousands_are_separated() -> None:
    assert [counted(count, "plan") for count in (0, 1, 2, 1200)] == ["0 plans", "1 plan", "2 plans", "1,200 plans"]


def test_runs_are_counted_beside_the_plans() -> None:
    found = typical(counts={"measured": 1018, "out of memory": 1})
    assert runs(found) == "1,019 trials of 16 plans: 1,018 measured, 1 out of memory, in 3 min 32 s"
    assert runs(typical(counts={})) == ""
    rows = (found.rows[0].model_copy(update={"earlier": True}), *found.rows[1:])
    earlier = found.model_copy(update={"rows": rows, "duration_s": 0.0})
    assert runs(earlier) == "1,019 trials: 1,018 measured, 1 out of memory"


def test_when_each_answer_came_is_one_line_for_two_answers_or_more() -> None:
    found = typical()
    first, *_, last = found.answers
    both = found.model_copy(update={"answers": (first, last)})
    assert answer_times(both) == f"1.00x after 5.2 s, {last.ratio:.2f}x after 59 s"
    assert answer_times(found.model_copy(update={"answers": (last,)})) == ""
    bare = both.model_copy(update={"answers": tuple(a.model_copy(update={"ratio": None}) for a in both.answers)})
    assert answer_times(bare).startswith("198.4 samples/s after 5.2 s, ")


@pytest.mark.parametrize(("ratio", "text"), [(-0.0001, "0.0%"), (0.0004, "0.0%"), (0.031, "+3.1%"), (-0.2, "-20.0%")])
def test_zero_has_no_sign(ratio: float, text: str) -> None:
    assert difference(ratio) == text


def test_a_time_has_whole_seconds_in_utc() -> None:
    assert moment("2026-11-24T20:11:08.123456+00:00") == "2026-11-24 20:11:08 UTC"
    assert moment("2026-11-24T21:11:08+01:00") == "2026-11-24 20:11:08 UTC"
    assert [moment("yesterday"), moment("")] == ["yesterday", ""]


NOW = datetime(2026, 11, 25, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2026-11-25T01:00:00", "2026-11-25T01:00:00+00:00", "2026-11-25T02:30:00+01:30"])
def test_a_time_is_in_utc(text: str) -> None:
    found = instant(text)
    assert found == NOW
    assert found is not None
    assert found.tzinfo is UTC


@pytest.mark.parametrize("text", ["tonight", "", "2026-13-01", "0001-01-01T00:00:00+23:00"])
def test_other_texts_are_no_times(text: str) -> None:
    assert instant(text) is None  # the last one is before the first year
