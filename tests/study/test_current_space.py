"""Earlier trials in terms of the space that is searched now."""

from pathlib import Path

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from tests.study.samples import PLAN, measured, reopen, space


def run(path: Path, outcome: Outcome, **options: object) -> None:
    study = reopen(path, **options)  # type: ignore[arg-type]  # the caller's keywords are those of reopen
    study.finish(study.begin(PLAN, Purpose.PROBE), outcome)


def test_a_knob_that_came_into_play_later_has_its_default_in_older_trials(db: Path) -> None:
    narrow = space().model_copy(update={"knobs": space().knobs[1:]})
    before = Plan(values={name: value for name, value in PLAN.values.items() if name != "precision"})
    study = reopen(db, facts=narrow)
    study.finish(study.begin(before, Purpose.PROBE), measured())
    later = reopen(db)
    assert [trial.plan for trial in later.earlier()] == [PLAN.replace(precision="fp32")]
    assert later.notes == ()


def test_trials_of_plans_that_are_not_searched_now_are_said_with_what_differs(db: Path) -> None:
    run(db, measured())
    other = space().model_copy(update={"global_batch_size": 16, "baseline": PLAN.replace(accumulation_steps=4)})
    study = reopen(db, facts=other)
    assert study.notes == (
        "1 trial not used, since this run does not search these plans: it has 4 x 2 samples per "
        "optimizer step, and this search runs 4 x 4",
    )
    assert len(study.earlier()) == 1  # for the record
    study.finish(study.begin(PLAN.replace(precision="fp32"), Purpose.PROBE), measured())
    (note,) = reopen(db, facts=space(precisions=("fp32",))).notes[1:]
    assert note == ("1 trial not used, since this run does not search these plans: precision=bf16 is not one of fp32")
