"""F21, defect 9: a crash at every size is the user's code's failure, with its last words and a next step."""

import pytest

from autofit.core.budget import Budget
from autofit.core.errors import AutofitError, BudgetSpent, NothingFits, UserCodeError
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Trial
from autofit.search.no_answer import nothing_measured
from autofit.search.search import run
from tests.fakes import FakeBench, small_bench, tuning_of
from tests.study.samples import PLAN, failed

LOG = (
    "AWS_SECRET_ACCESS_KEY=tiger\nFatal Python error: Segmentation fault\x1b[31m\u202e\n\n"
    'Current thread 0x1 (most recent call first):\n  File "train.py", line 3 in forward\nTOKEN=lion\n'
)
BUDGET = Budget(memory_bytes=2**30)


def crashed(number: int, status: Status = Status.CRASHED, text: str = LOG) -> Trial:
    outcome = failed(status, traceback_text=text)
    return Trial(number=number, plan=PLAN.replace(micro_batch_size=number + 1), outcome=outcome)


def error_of(*trials: Trial, early: bool = False) -> AutofitError:
    return nothing_measured(trials, PLAN, BUDGET, "nothing left", early)


def test_defect_09_it_is_exit_code_5_and_says_the_last_words_and_what_to_do() -> None:
    error = error_of(crashed(0), crashed(1), crashed(2, Status.TIMED_OUT))
    assert isinstance(error, UserCodeError)
    assert error.exit_code == 5
    text = str(error)
    assert "each of the 3 plans tried (3 runs)" in text
    assert "Its last error output was: Fatal Python error: Segmentation fault" in text
    assert "python -X faulthandler" in text
    assert not [
        secret for secret in ("tiger", "lion", "\x1b", "Current thread") if secret in text + error.traceback_text
    ]


def test_nothing_is_quoted_where_no_error_was_named() -> None:
    assert "last error output" not in str(error_of(crashed(0, text="TOKEN=lion\n")))


def test_other_ends_are_told_as_before() -> None:
    skipped = Trial(number=9, plan=PLAN, outcome=Outcome(status=Status.SKIPPED, reason="no"))
    large = Trial(number=9, plan=PLAN, outcome=failed(Status.OUT_OF_MEMORY))
    assert isinstance(error_of(crashed(0), skipped), UserCodeError)
    assert isinstance(error_of(crashed(0), large), NothingFits)
    assert isinstance(error_of(skipped), NothingFits)
    assert isinstance(error_of(crashed(0, Status.TIMED_OUT), early=True), BudgetSpent)
    assert isinstance(error_of(crashed(0), early=True), UserCodeError)
    assert isinstance(error_of(early=True), BudgetSpent)


@pytest.mark.fault("F21")
def test_defect_09_a_search_in_which_all_crashes_ends_so() -> None:
    bench = small_bench()
    always = failed(Status.CRASHED, traceback_text=LOG)

    def evaluate(*args: object) -> Outcome:
        FakeBench.evaluate(bench, *args)  # type: ignore[arg-type]  # time passes
        return always

    tuning = tuning_of(bench)
    tuning.evaluate = evaluate
    with pytest.raises(UserCodeError, match="crashed or hung with each of the"):
        run(tuning)
