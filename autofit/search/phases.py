"""Runs the phases of a search: search, race, proof. Evaluation is a function, so torch is not needed here."""

from dataclasses import replace

from autofit.search.loop import Loop
from autofit.search.race_and_proof import Final
from autofit.search.tuning import Evaluate, Findings, TrialLog, Tuning

__all__ = ["Evaluate", "Findings", "TrialLog", "Tuning", "run"]


def run(tuning: Tuning) -> Findings:
    """Searches, races the finalists and proves the winner.

    Raises:
        NothingFits: no plan ran inside the memory budget, or none could be proven.
        UserCodeError: the user's code failed with the baseline and with another plan.
        NonFiniteLoss: the baseline gives a loss that is not finite.
        BudgetSpent: the time or the trials were used up before any plan was measured.
        WorkloadError: no plan could be measured for reasons other than memory.
        DevicePoisoned: the device answers every call with an error.
        KeyboardInterrupt: the user stopped the search; the running trial is recorded as interrupted.
    """
    loop = Loop(tuning)
    tuning.seen.trials, tuning.seen.estimates = loop.runner.trials, loop.feasibility.looked_at
    loop.recall()
    loop.search()
    loop.ensure_baseline()
    findings = Final(loop.runner, loop.end, loop.feasibility.looked_at, loop.consider).findings()
    return replace(findings, caveats=(*loop.runner.earlier.caveats, *findings.caveats))
