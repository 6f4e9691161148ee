"""The loop: ask, screen, probe, record, tell; then race and prove. Evaluation is a function, so no torch here."""

from dataclasses import replace

from autofit.search.final import Final
from autofit.search.loop import Loop
from autofit.search.tuning import Evaluate, Findings, TrialLog, Tuning

__all__ = ["Evaluate", "Findings", "TrialLog", "Tuning", "run"]


def run(tuning: Tuning) -> Findings:
    """Searches, races the finalists, proves the winner.

    Raises:
        NothingFits: no plan ran inside the memory budget, or none could be proven.
        UserCodeError: the user's code failed under their own setting and another plan.
        NonFiniteLoss: the user's own setting gives a loss that is not finite.
        BudgetSpent: time or trials were spent before any plan was measured.
        WorkloadError: no plan could be measured for reasons other than memory.
        DevicePoisoned: the device answers every call with an error.
        KeyboardInterrupt: the user stopped it; the running trial is recorded as interrupted.
    """
    loop = Loop(tuning)
    tuning.seen.trials, tuning.seen.estimates = loop.runner.trials, loop.screening.estimates
    loop.recall()
    loop.search()
    loop.ensure_baseline()
    findings = Final(loop.runner, loop.end, loop.screening.estimates, loop.consider).findings()
    return replace(findings, caveats=(*loop.runner.earlier.caveats, *findings.caveats))
