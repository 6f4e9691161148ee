"""Promise 7: every plan that was tried, skipped or refused has a reason that a person can read."""

from autofit.search.loop import Loop
from autofit.search.search import run
from tests.fakes import MIB, MemoryLog, small_bench, tuning_of
from tests.promises.conftest import Tuned


def test_every_plan_that_was_not_chosen_says_why(tuned: Tuned) -> None:
    assert tuned.fit.alternatives
    assert all(other.note for other in tuned.fit.alternatives)


def test_every_strategy_that_was_left_out_says_why(tuned: Tuned) -> None:
    assert tuned.fit.answer.refused
    assert all(refusal.reason for refusal in tuned.fit.answer.refused)


def test_the_printed_answer_shows_gain_peak_and_reasons(tuned: Tuned) -> None:
    text = str(tuned.fit)
    assert str(tuned.fit.plan.micro_batch_size) in text
    assert "peak" in text
    assert "MiB" in text


def test_every_trial_without_a_measurement_has_a_reason() -> None:
    log, bench, loops = MemoryLog(), small_bench(budget_bytes=900 * MIB), list[Loop]()
    run(tuning_of(bench, log), loops.append)
    failed = [trial for trial in log.finished if not trial.outcome.measured]
    assert failed
    assert all(trial.outcome.reason for trial in failed)
    assert loops[0].omissions
