"""What a study records, how Optuna reads it, and what a later run gets back."""

import logging
import math
import sqlite3
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from autofit.core.errors import StudyError
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from tests.study.samples import (
    BUDGET,
    HERE,
    MIB,
    PLAN,
    failed,
    in_optuna,
    measured,
    measurement,
    reopen,
    run,
    space,
    storage_at,
)


def test_a_trial_is_running_on_disk_from_begin_on_and_complete_after_finish(db: Path) -> None:
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROOF)
    (before,) = in_optuna(db)
    assert before.state is TrialState.RUNNING
    assert before.params == dict(PLAN.values)
    trial = study.finish(number, measured())
    assert (trial.number, trial.plan, trial.purpose, trial.earlier) == (0, PLAN, Purpose.PROOF, False)
    (after,) = in_optuna(db)
    assert after.state is TrialState.COMPLETE
    assert after.value == pytest.approx(64.0)  # 8 samples in the median step of 0.125 s
    assert list(after.constraints) == ["memory", "valid"]
    assert after.constraints["memory"] == pytest.approx(-0.4)
    shown = {k: v for k, v in after.user_attrs.items() if not k.startswith("autofit.")}
    assert shown == {
        "purpose": "proof",
        "status": "measured",
        "samples_per_s": 64.0,
        "step_time_ms": 125.0,
        "peak_mib": 600.0,
    }


def test_a_later_run_gets_the_whole_record(db: Path) -> None:
    outcome = failed(Status.NUMERIC, measurement=measurement(loss=math.inf), phase="forward", traceback_text="é\n")
    run(db, outcome)
    (trial,) = reopen(db).earlier()
    assert trial.earlier
    assert trial.plan == PLAN
    assert trial.outcome == outcome


def test_a_loss_that_is_no_number_survives(db: Path) -> None:
    run(db, failed(Status.NUMERIC, measurement=measurement(loss=math.nan)))
    (trial,) = reopen(db).earlier()
    assert trial.outcome.measurement is not None
    assert trial.outcome.measurement.loss is not None
    assert math.isnan(trial.outcome.measurement.loss)


def test_what_this_run_records_is_not_earlier() -> None:
    study = reopen(None)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert study.earlier() == ()
    assert study.location == "memory"


def test_trials_of_another_environment_are_left_out_and_the_note_says_why(db: Path) -> None:
    run(db, measured(), environment=HERE.model_copy(update={"versions": {"torch": "2.11.0"}}))
    run(db, measured())
    study = reopen(db)
    assert [trial.number for trial in study.earlier()] == [1]
    assert study.notes == ("1 trial of another environment left out: torch: 2.13.0, was 2.11.0",)


@pytest.mark.parametrize(
    ("outcome", "budget", "status"),
    [
        (measured(600 * MIB), BUDGET * 2, Status.MEASURED),
        (measured(600 * MIB), 500 * MIB, Status.OVER_BUDGET),
        (failed(Status.OVER_BUDGET, measurement=measurement(1500 * MIB)), BUDGET * 2, Status.MEASURED),
        (failed(Status.OVER_BUDGET, measurement=measurement(1500 * MIB)), 1200 * MIB, Status.OVER_BUDGET),
        (failed(Status.OVER_BUDGET, measurement=measurement(allocator_retries=2)), BUDGET, Status.OVER_BUDGET),
        (failed(Status.OVER_BUDGET, measurement=measurement(allocator_retries=2)), BUDGET * 2, None),
        (failed(Status.OUT_OF_MEMORY), BUDGET, Status.OUT_OF_MEMORY),
        (failed(Status.OUT_OF_MEMORY), 500 * MIB, Status.OUT_OF_MEMORY),
        (failed(Status.OUT_OF_MEMORY), BUDGET * 2, None),
        (failed(Status.NUMERIC), BUDGET * 2, Status.NUMERIC),
    ],
)
def test_earlier_trials_are_judged_by_the_present_budget(
    db: Path, outcome: Outcome, budget: int, status: Status | None
) -> None:
    run(db, outcome)
    study = reopen(db, memory_bytes=budget)
    assert [trial.outcome.status for trial in study.earlier()] == ([] if status is None else [status])
    assert bool(study.notes) == (status is None)
    for trial in study.earlier():
        assert trial.outcome.measurement == outcome.measurement


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.REJECTED, Status.INTERRUPTED, Status.USER_ERROR])
def test_what_says_nothing_about_the_plan_is_not_taken_over(db: Path, status: Status) -> None:
    run(db, failed(status))
    assert reopen(db).earlier() == ()


def test_a_trial_of_an_earlier_version_says_nothing_of_windows_and_is_taken_over(db: Path) -> None:
    run(db, measured())
    with closing(sqlite3.connect(db)) as connection, connection:
        text = "replace(value_json, ?, '')"
        query = f"update trial_user_attributes set value_json = {text} where key = 'autofit.outcome'"
        connection.execute(query, (r", \"steps_per_window\": 1",))
        connection.execute("delete from trial_user_attributes where key = 'autofit.outcome.sum'")
        (stored,) = connection.execute("select value_json from trial_user_attributes where key = 'autofit.outcome'")
    assert "step_times_s" in stored[0]
    assert "steps_per_window" not in stored[0]
    (trial,) = reopen(db).earlier()
    assert trial.outcome == measured()


def test_a_changed_domain_starts_a_further_study_and_keeps_the_old_trials(db: Path) -> None:
    run(db, measured())
    wider = space(precisions=("fp32", "tf32", "bf16"))
    study = reopen(db, facts=wider)
    assert study.notes == (
        "trials of this run are stored in the study net#2: precision: fp32, tf32, bf16, was fp32, bf16",
    )
    assert len(study.earlier()) == 1
    study.finish(study.begin(PLAN.replace(precision="tf32"), Purpose.PROBE), measured())
    assert (len(in_optuna(db)), len(in_optuna(db, "net#2"))) == (1, 1)
    unused = "1 trial not used, since this run does not search these plans: precision=tf32 is not one of fp32, bf16"
    for facts, notes in ((wider, ()), (space(), (unused,))):  # each goes on where its own domain was used
        again = reopen(db, facts=facts)
        assert (len(again.earlier()), again.notes) == (2, notes)


def test_a_further_study_has_a_name_of_its_own_though_the_first_was_deleted(db: Path) -> None:
    run(db, measured())
    precisions = ("fp32", "tf32", "bf16", "fp16")
    reopen(db, facts=space(precisions=precisions[:3]))
    run_in = reopen(db, facts=space(precisions=precisions[:3]))
    run_in.finish(run_in.begin(PLAN, Purpose.PROBE), measured())
    optuna.delete_study(study_name="net", storage=storage_at(db))
    study = reopen(db, facts=space(precisions=precisions))
    assert study.notes[0].startswith("trials of this run are stored in the study net#3")
    assert len(study.earlier()) == 1


def test_scores_in_another_unit_go_to_a_further_study(db: Path) -> None:
    run(db, measured())
    study = reopen(db, objective=Objective(unit="tokens"))
    assert study.notes == ("trials of this run are stored in the study net#2: objective: tokens, was samples",)
    assert len(study.earlier()) == 1


def test_values_outside_the_space_are_kept_in_the_record(db: Path) -> None:
    study = reopen(db)
    plan = PLAN.replace(precision="fp8", micro_batch_size=2**21, fuse=True)
    study.finish(study.begin(plan, Purpose.PROBE), measured())
    assert reopen(db).earlier()[0].plan == plan


def test_studies_of_one_storage_do_not_mix(db: Path) -> None:
    run(db, measured())
    other = reopen(db)
    for name in ("net2", "ne", "net#x", "n.t"):
        study = type(other).open(
            db,
            name=name,
            environment=HERE,
            space=space(),
            objective=Objective(),
            memory_bytes=BUDGET,
        )
        assert study.earlier() == ()


def test_notes_are_attributes_of_the_study(db: Path) -> None:
    reopen(db).note("winner", {"plan": PLAN.key, "gain": 1.5})
    kept = optuna.load_study(study_name="net", storage=storage_at(db)).user_attrs
    assert kept["winner"] == {"plan": PLAN.key, "gain": 1.5}


def test_only_a_running_trial_can_be_finished() -> None:
    study = reopen(None)
    number = study.begin(PLAN, Purpose.PROBE)
    study.finish(number, measured())
    for wrong in (number, 7):
        with pytest.raises(StudyError, match=f"trial {wrong} .*found running none; expected .* Call begin"):
            study.finish(wrong, measured())


def test_trials_that_autofit_cannot_read_are_counted(db: Path) -> None:
    run(db, measured())
    foreign = optuna.load_study(study_name="net", storage=storage_at(db))
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    foreign.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"autofit.request": '{"plan": 3}'}))
    study = reopen(db)
    assert len(study.earlier()) == 1
    assert study.notes == ("2 trials without a readable autofit record left out",)


def test_a_newer_schema_is_refused_naming_both(db: Path) -> None:
    run(db, measured())
    kept = optuna.load_study(study_name="net", storage=storage_at(db))
    kept.set_user_attr("autofit.schema", "autofit.study/2")
    with pytest.raises(StudyError, match=r"autofit\.study/2; expected autofit\.study/1.*Upgrade"):
        reopen(db)


def test_a_study_of_another_program_is_refused(db: Path) -> None:
    reopen(db)
    foreign = optuna.create_study(storage=storage_at(db), study_name="other")
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    study = type(reopen(db))
    with pytest.raises(StudyError, match="not made by autofit"):
        study.open(db, name="other", environment=HERE, space=space(), objective=Objective(), memory_bytes=BUDGET)


def test_optuna_stays_as_talkative_as_it_was(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()
    kept = optuna.logging.get_verbosity()
    try:
        for level in (logging.DEBUG, logging.ERROR):
            optuna.logging.set_verbosity(level)
            run(db, measured())
            assert optuna.logging.get_verbosity() == level
            assert not caplog.records
    finally:
        optuna.logging.set_verbosity(kept)
        optuna.logging.disable_propagation()


def test_a_failed_write_can_be_made_again(db: Path) -> None:
    study = reopen(db)
    number = study.begin(PLAN, Purpose.PROBE)

    def full(*args: object) -> None:
        raise OperationalError("commit", None, sqlite3.OperationalError("database or disk is full"))

    event.listen(Engine, "commit", full)
    try:
        with pytest.raises(StudyError, match="disk is full"):
            study.finish(number, measured())
    finally:
        event.remove(Engine, "commit", full)
    (kept,) = in_optuna(db)
    assert (kept.state, "status" in kept.user_attrs) == (TrialState.RUNNING, False)  # all of it or nothing
    study.finish(number, failed(Status.OUT_OF_MEMORY))
    (kept,) = in_optuna(db)
    assert kept.user_attrs["status"] == "out of memory"
    assert kept.constraints["memory"] > 0
