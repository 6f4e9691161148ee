"""Runs the phases of a search: search, race, proof. Evaluation is a function, so torch is not needed here."""

from dataclasses import replace

from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, StudyError
from autofit.search.loop import Loop
from autofit.search.race_and_proof import Final
from autofit.search.tuning import Evaluate, Findings, TrialLog, Tuning

__all__ = ["Evaluate", "Findings", "TrialLog", "Tuning", "run"]


def run(tuning: Tuning) -> Findings:
    """Searches, races the finalists and proves the winner. Once there is an answer, it is returned whatever happens.

    An error or an interrupt of the user then only ends the search (`Findings.stopped`, `Findings.interrupted`).

    Raises:
        NothingFits: no plan ran inside the memory budget, or none could be proven.
        UserCodeError: the user's code failed with the baseline and with another plan.
        NonFiniteLoss: the baseline gives a loss that is not finite.
        BudgetSpent: the time or the trials were used up before any plan was measured.
        WorkloadError: no plan could be measured for reasons other than memory.
        DevicePoisoned: the device answers every call with an error; with an answer, only of a device in this process.
        RestoreError: the user's objects could not be restored.
        StudyError: the study cannot be written.
        KeyboardInterrupt: the user stopped the search before there was an answer; the running trial is recorded.
    """
    loop = Loop(tuning)
    tuning.seen.trials, tuning.seen.estimates = loop.runner.trials, loop.feasibility.looked_at
    try:
        loop.recall()
        loop.search()
        loop.ensure_baseline()
    except (KeyboardInterrupt, AutofitError) as error:
        if not _is_answered(loop, error, tuning.isolated):
            raise
        loop.stop(error)
        return _findings(loop, Final(loop))
    final = Final(loop)
    try:
        final.settle()
    except (KeyboardInterrupt, AutofitError) as error:
        if not _is_answered(loop, error, tuning.isolated):
            raise
        final.stop(error)
    return _findings(loop, final)


def _is_answered(loop: Loop, error: BaseException, isolated: bool) -> bool:
    """Returns whether the search has an answer that an error does not make invalid."""
    loop.answers.fall_back()
    # On a poisoned device of this process nothing can be put back, so that the user has no model to train any more.
    lost = isinstance(error, DevicePoisoned) and not isolated
    return loop.answers.best is not None and not lost and not isinstance(error, RestoreError | StudyError)


def _findings(loop: Loop, final: Final) -> Findings:
    findings = final.findings()
    return replace(findings, caveats=(*loop.runner.earlier.caveats, *findings.caveats))
