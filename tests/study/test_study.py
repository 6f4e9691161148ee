"""What a study records, how Optuna reads it, and what a later run gets back."""

import logging
import math
import resource
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from autofit.core.errors import StorageError, StudyError
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


def test_a_trial_is_running_on_disk_from_begin_on_and_complete_after_finish(journal: Path) -> None:
    study = reopen(journal)
    number = study.begin(PLAN, Purpose.PROOF)
    (before,) = in_optuna(journal)
    assert before.state is TrialState.RUNNING
    assert before.params == dict(PLAN.values)
    trial = study.finish(number, measured())
    assert (trial.number, trial.plan, trial.purpose, trial.earlier) == (0, PLAN, Purpose.PROOF, False)
    (after,) = in_optuna(journal)
    assert after.state is TrialState.COMPLETE
    assert after.value == pytest.approx(64.0)  # 8 samples in the median step of 0.125 s
    assert list(after.constraints) == ["memory", "valid"]
    assert after.constraints["memory"] == pytest.approx(-0.4)
    shown = {k: v for k, v in after.user_attrs.items() if not k.startswith("autofit.")}
    assert shown == {
        "purpose": "proof",
        "status": "measured",
        "peak_mib": 600.0,
    }


def test_a_later_run_gets_the_whole_record(journal: Path) -> None:
    outcome = failed(Status.NUMERIC, measurement=measurement(loss=math.inf), phase="forward", traceback_text="é\n")
    run(journal, outcome)
    (trial,) = reopen(journal).earlier()
    assert trial.earlier
    assert trial.plan == PLAN
    assert trial.outcome == outcome


def test_a_loss_that_is_no_number_survives(journal: Path) -> None:
    run(journal, failed(Status.NUMERIC, measurement=measurement(loss=math.nan)))
    (trial,) = reopen(journal).earlier()
    assert trial.outcome.measurement is not None
    assert trial.outcome.measurement.loss is not None
    assert math.isnan(trial.outcome.measurement.loss)


def test_what_this_run_records_is_not_earlier() -> None:
    study = reopen(None)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    assert study.earlier() == ()
    assert study.location == "memory"


@pytest.mark.fault("F57")
def test_trials_of_another_environment_are_left_out_and_the_note_says_why(journal: Path) -> None:
    run(journal, measured(), environment=HERE.model_copy(update={"versions": {"torch": "2.11.0"}}))
    run(journal, measured())
    study = reopen(journal)
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
    journal: Path, outcome: Outcome, budget: int, status: Status | None
) -> None:
    run(journal, outcome)
    study = reopen(journal, memory_bytes=budget)
    assert [trial.outcome.status for trial in study.earlier()] == ([] if status is None else [status])
    assert bool(study.notes) == (status is None)
    for trial in study.earlier():
        assert trial.outcome.measurement == outcome.measurement


@pytest.mark.parametrize("status", [Status.SKIPPED, Status.REJECTED, Status.INTERRUPTED, Status.USER_ERROR])
def test_what_says_nothing_about_the_plan_is_not_taken_over(journal: Path, status: Status) -> None:
    run(journal, failed(status))
    assert reopen(journal).earlier() == ()


def test_changed_choices_of_a_knob_stay_in_one_study_and_lose_nothing(journal: Path) -> None:
    run(journal, measured())
    study = reopen(journal, facts=space(precisions=("fp32", "tf32", "bf16")))
    assert (len(study.earlier()), study.notes) == (1, ())
    study.finish(study.begin(PLAN.replace(precision="tf32"), Purpose.PROBE), measured())
    first, second = in_optuna(journal)
    assert (first.params["precision"], "precision" in second.params) == ("bf16", False)
    again = reopen(journal, facts=space(precisions=("fp32", "tf32", "bf16")))
    assert [trial.plan.values["precision"] for trial in again.earlier()] == ["bf16", "tf32"]
    unused = "1 trial not used, since this run does not search these plans: precision=tf32 is not one of fp32, bf16"
    assert reopen(journal).notes == (unused,)


def test_ranges_of_whole_numbers_may_change(journal: Path) -> None:
    run(journal, measured())
    study = reopen(journal, facts=space(blocks=(0, 6, 12)))
    study.finish(study.begin(PLAN.replace(checkpointed_blocks=12), Purpose.PROBE), measured())
    assert [trial.params["checkpointed_blocks"] for trial in in_optuna(journal)] == [2, 12]


def test_values_outside_the_space_are_kept_in_the_record(journal: Path) -> None:
    study = reopen(journal)
    plan = PLAN.replace(precision="fp8", micro_batch_size=2**21, fuse=True)
    study.finish(study.begin(plan, Purpose.PROBE), measured())
    assert reopen(journal).earlier()[0].plan == plan


def test_studies_of_one_storage_do_not_mix(journal: Path) -> None:
    run(journal, measured())
    other = reopen(journal)
    for name in ("net2", "ne", "net#x", "n.t"):
        study = type(other)(
            journal,
            name=name,
            environment=HERE,
            space=space(),
            objective=Objective(),
            memory_bytes=BUDGET,
        )
        assert study.earlier() == ()


def test_notes_are_attributes_of_the_study(journal: Path) -> None:
    reopen(journal).note("winner", {"plan": PLAN.key, "gain": 1.5})
    kept = optuna.load_study(study_name="net", storage=storage_at(journal)).user_attrs
    assert kept["winner"] == {"plan": PLAN.key, "gain": 1.5}


def test_only_a_running_trial_can_be_finished() -> None:
    study = reopen(None)
    number = study.begin(PLAN, Purpose.PROBE)
    study.finish(number, measured())
    for wrong in (number, 7):
        with pytest.raises(StudyError, match=f"trial {wrong} .*found running none; expected .* Call begin"):
            study.finish(wrong, measured())


def test_trials_that_autofit_cannot_read_are_counted(journal: Path) -> None:
    run(journal, measured())
    foreign = optuna.load_study(study_name="net", storage=storage_at(journal))
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    foreign.add_trial(optuna.trial.create_trial(value=1.0, user_attrs={"autofit.start": '{"plan": 3}'}))
    study = reopen(journal)
    assert len(study.earlier()) == 1
    assert study.notes == ("2 trials without a readable autofit record left out",)


@pytest.mark.fault("F58")
def test_a_newer_schema_is_refused_naming_both(journal: Path) -> None:
    run(journal, measured())
    kept = optuna.load_study(study_name="net", storage=storage_at(journal))
    kept.set_user_attr("autofit.schema", "autofit.study/2")
    with pytest.raises(StudyError, match=r"found the schema autofit\.study/2; expected autofit\.study/1"):
        reopen(journal)


def test_a_study_of_another_program_is_refused(journal: Path) -> None:
    reopen(journal)
    foreign = optuna.create_study(storage=storage_at(journal), study_name="other")
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    study = type(reopen(journal))
    with pytest.raises(StudyError, match="found trials but no schema"):
        study(journal, name="other", environment=HERE, space=space(), objective=Objective(), memory_bytes=BUDGET)


def test_optuna_stays_as_talkative_as_it_was(journal: Path, caplog: pytest.LogCaptureFixture) -> None:
    optuna.logging.enable_propagation()
    kept = optuna.logging.get_verbosity()
    try:
        for level in (logging.DEBUG, logging.ERROR):
            optuna.logging.set_verbosity(level)
            run(journal, measured())
            assert optuna.logging.get_verbosity() == level
            assert not caplog.records
    finally:
        optuna.logging.set_verbosity(kept)
        optuna.logging.disable_propagation()


@pytest.mark.fault("F54")
def test_a_disk_that_is_full_while_the_study_is_made_is_a_study_error_and_it_can_be_made_again(tmp_path: Path) -> None:
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 10, 150, 300):  # within the first lines
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, kept[1]))
        try:
            with pytest.raises(StorageError, match=r"not be opened: found OSError.*expected .*free space"):
                reopen(tmp_path / "s.journal")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    run(tmp_path / "s.journal", measured())
    assert len(reopen(tmp_path / "s.journal").earlier()) == 1


@pytest.mark.fault("F54")
def test_a_full_disk_is_a_study_error_and_the_write_can_be_made_again(journal: Path) -> None:
    study = reopen(journal)
    study.finish(study.begin(PLAN, Purpose.PROBE), measured())
    number = study.begin(PLAN.replace(micro_batch_size=2), Purpose.PROBE)
    long = measured().model_copy(update={"traceback_text": "x" * 2**18})
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + 1000, kept[1]))  # what a full disk is
    try:
        with pytest.raises(StudyError, match=r"not be written: found OSError.*expected .*earlier records are kept"):
            study.finish(number, long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert [trial.state for trial in in_optuna(journal)] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert study.finish(number, long).outcome == long  # once there is space again
    again = reopen(journal)
    assert [trial.outcome for trial in again.earlier()] == [measured(), long]
    assert all(len(trial.constraints) == 2 for trial in in_optuna(journal))


def test_what_was_dropped_is_dropped_for_later_runs_and_stays_on_disk(journal: Path) -> None:
    run(journal, measured())
    reopen(journal).drop("contradicted")
    later = reopen(journal)
    assert (later.earlier(), len(in_optuna(journal))) == ((), 1)
    assert later.notes[0].startswith("1 trial dropped on 2")


def test_values_have_a_name_for_the_dashboard(journal: Path) -> None:
    assert optuna.load_study(study_name="net", storage=storage_at(journal)).metric_names == ["samples/s"]
