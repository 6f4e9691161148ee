"""TrialRunner: runs plans, and records each run on disk as a trial before the next one starts."""

from collections.abc import Callable

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio
from autofit.core.run_terms import OPEN, RunTerms
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_outcome, describe_plan
from autofit.search.ambiguous_failures import doubted, settled
from autofit.search.cold_start import from_cold_start
from autofit.search.earlier_runs import Earlier
from autofit.search.event import Event
from autofit.search.evidence import Placing
from autofit.search.ledger import Ledger
from autofit.search.no_answer import for_good, users_fault
from autofit.search.tuning import Tuning


class TrialRunner:
    """Runs plans and keeps their trials.

    Args:
        tuning: the arguments of the search.

    Attributes:
        tuning: the arguments of the search.
        baseline: the user's own plan.
        trials: every trial, those of earlier runs first. Of the blocks of a race, only those that failed are trials.
        record: the latest informative trial of each plan, by the plan's key.
        earlier: trials of earlier runs in the study.
        ledger: what actions cost, and the time left.
        probes: number of probes that have run.
        so_far: returns the throughput of the answer so far over the baseline's; None before there is one.
        phase: phase of the search (`Event.phase`).
        most_left_s: estimates the time left in the present phase (`Event.left_s`).
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.baseline = tuning.space.baseline
        self.trials: list[Trial] = []
        self.record: dict[str, Trial] = {}
        self.earlier = Earlier(tuning)
        self.ledger = Ledger(tuning)
        self.probes = 0
        self.so_far: Callable[[], float | None] = lambda: None
        self.phase = "search"
        self.most_left_s: Callable[[], float | None] = lambda: None
        self._poisoned = 0

    def probe(self, plan: Plan, terms: RunTerms = OPEN) -> Trial:
        """Runs a plan as a probe on the given terms, and records its duration in the ledger."""
        began_s = self.tuning.clock.elapsed_s
        trial = self.attempt(plan, Purpose.PROBE, terms)
        self.probes += 1
        self.ledger.probed(self.tuning.clock.elapsed_s - began_s, trial.outcome)
        self.say_finished("trial", trial)
        return trial

    def attempt(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Trial:
        """Runs a plan and records it. Repeats a run once if its failure is ambiguous, inconclusive or doubted.

        An inconclusive run that took longer than the time left is not repeated: it would be cut off even sooner.

        Args:
            plan: what to run.
            purpose: why.
            terms: how long it may take, and when a probe continues to its proof.
        """
        began_s = self.tuning.clock.elapsed_s
        trial = self._once(plan, purpose, terms, lambda outcome: self._doubted(plan, outcome))
        hurried = self.ledger.left_s() < self.tuning.clock.elapsed_s - began_s or self.ledger.left_s() <= 0
        again = trial.outcome.status.inconclusive and not hurried
        if again or trial.outcome.status is Status.AMBIGUOUS:
            trial = self._once(plan, purpose, terms, lambda outcome: settled(self.record.values(), plan, outcome))
        if purpose is Purpose.PROOF:
            self.earlier.compare(plan, purpose, trial.outcome)
        return trial

    def block(self, plan: Plan) -> tuple[Outcome, Trial | None]:
        """Runs one block of a race. Only a failed block is recorded, and its trial returned."""
        outcome = self.tuning.evaluate(plan, Purpose.BLOCK, OPEN)
        ambiguous = self._doubted(plan, outcome).status is Status.AMBIGUOUS
        if (outcome.status.inconclusive or ambiguous) and self.ledger.left_s() > 0:
            outcome = self.tuning.evaluate(plan, Purpose.BLOCK, OPEN)
        self.earlier.compare(plan, Purpose.BLOCK, outcome)
        self._count_poison(outcome)
        if outcome.measured and outcome.measurement is not None:
            return outcome, None
        trial = self._finish(self.tuning.log.begin(plan, Purpose.BLOCK), outcome)
        self._refuse_poison(outcome)
        return outcome, trial

    def skip(self, plan: Plan, reason: str) -> Trial:
        """Records that a plan is not run, with the reason."""
        number = self.tuning.log.begin(plan, Purpose.PROBE)
        trial = self._finish(number, Outcome(status=Status.SKIPPED, reason=reason))
        self.say("skipped", f"{self.named(plan)}: skipped, {reason}", trial)
        return trial

    def check_for_users_fault(self) -> None:
        """Ends the search if the user's code fails with any plan.

        Raises:
            UserCodeError: it does, or the baseline gives a loss that is not finite.
        """
        fault = users_fault([t for t in self.trials if not t.earlier], self.baseline)
        if fault is not None:
            raise fault

    def named(self, plan: Plan) -> str:
        """Returns the batch of a plan and what it changes, as a person reads it."""
        return describe_plan(plan, self.baseline)

    def say(self, kind: str, text: str, trial: Trial | None = None, plan: Plan | None = None) -> None:
        """Sends an event to the listener."""
        phase, left_s = self.phase, self.most_left_s()
        self.tuning.listen(
            Event(kind, text, trial, self.probes, phase=phase, plan=plan, left_s=left_s, so_far=self.so_far())
        )

    def say_finished(self, kind: str, trial: Trial) -> None:
        """Reports a finished trial: its plan, and its throughput and peak or the reason why it has none."""
        outcome = describe_outcome(trial.outcome, self.tuning.objective.unit)
        self.say(kind, f"{self.named(trial.plan)}: {outcome}", trial)

    def say_running(self, plan: Plan, estimate: Estimate | None) -> None:
        """Reports that a plan begins to run, with the estimate of its peak."""
        text, done, left_s = f"running {self.named(plan)}", self.probes, self.most_left_s()
        phase, so_far = self.phase, self.so_far()
        self.tuning.listen(
            Event("running", text, done=done, phase=phase, plan=plan, estimate=estimate, left_s=left_s, so_far=so_far)
        )

    def say_round(self, text: str, leader: Plan | None, gain: Ratio | None, standings: tuple[Placing, ...]) -> None:
        """Reports the end of a round of the race: the leader's gain over the baseline, and how the plans compare."""
        done, phase, left_s = self.probes, self.phase, self.most_left_s()
        self.tuning.listen(
            Event(
                "race",
                text,
                done=done,
                phase=phase,
                plan=leader,
                gain=gain,
                standings=standings,
                left_s=left_s,
                so_far=self.so_far(),
            )
        )

    def _doubted(self, plan: Plan, outcome: Outcome) -> Outcome:
        return doubted(self.record.values(), plan, outcome, self.tuning.budget.memory_bytes)

    def _once(self, plan: Plan, purpose: Purpose, terms: RunTerms, settle: Callable[[Outcome], Outcome]) -> Trial:
        """Runs a plan once. Its trial is on disk as running before, and as finished after, even if it raises."""
        number = self.tuning.log.begin(plan, purpose)
        try:
            outcome = self.tuning.evaluate(plan, purpose, terms)
            self._count_poison(outcome)
            outcome = from_cold_start(settle(outcome), plan, self.trials, self.tuning.space.facts.knobs)
        except KeyboardInterrupt:
            self._finish(number, Outcome(status=Status.INTERRUPTED, reason="stopped by the user"))
            raise
        except DevicePoisoned as error:
            self._finish(number, Outcome(status=Status.POISONED, reason=str(error) or "the device is poisoned"))
            raise
        except Exception as error:
            self._finish(number, Outcome(status=Status.CRASHED, reason=f"{type(error).__name__}: {error}"))
            raise
        trial = self._finish(number, outcome)
        self._refuse_poison(outcome)
        return trial

    def _count_poison(self, outcome: Outcome) -> None:
        self._poisoned = self._poisoned + 1 if outcome.status is Status.POISONED else 0

    def _finish(self, number: int, outcome: Outcome) -> Trial:
        trial = self.tuning.log.finish(number, outcome)
        self.trials.append(trial)
        return trial

    def _refuse_poison(self, outcome: Outcome) -> None:
        """Ends the search after an interrupt, or if the device stays poisoned.

        Raises:
            KeyboardInterrupt: the outcome is an interrupt.
            DevicePoisoned: the device is poisoned in this process, or twice in a row in fresh processes.
        """
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        if self._poisoned > int(self.tuning.isolated):
            raise for_good(outcome.reason)
