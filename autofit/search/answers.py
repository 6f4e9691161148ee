"""Answers: the best plan so far that is proven and checked. Once the baseline has run, there is one at any moment.

Checks: whether plans keep the baseline's gradient, compared once and only for a plan that may become the answer.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pydantic import ValidationError

from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.strict import Strict
from autofit.core.trial import Purpose, RunTerms, Trial
from autofit.gates.verdict import ACCUMULATION, Checked, GateVerdict, at_fault, values_to_check
from autofit.search.choice import PROBE_NOISE_RATIO, keeps_batch, measurement_of, quotient
from autofit.search.common_scale import proof_contradicts
from autofit.search.evidence import Answered
from autofit.search.ledger import Ledger
from autofit.search.request import Tuning
from autofit.search.trial_runner import TrialRunner

CUT_OFF = (Status.TIMED_OUT, Status.SKIPPED)
"""Outcomes of a proof that the end of the time cut off: they say nothing of the plan."""


VERDICTS = "verdicts"
"""Name of the note on a study that holds the verdicts on values of knobs."""


class Checks:
    """The verdicts on the values of a search, those of earlier runs in the study among them.

    Attributes:
        known: verdict by value; see `Checked.verdicts`.
        refused: the values that changed the gradient, or on which nothing can decide, with the reason.
    """

    def __init__(self, tuning: Tuning, ledger: Ledger) -> None:
        self._tuning, self._ledger = tuning, ledger
        self._baseline, self._free = tuning.space.baseline, tuning.space.facts.global_batch_size is None
        kept = _Kept(of_what=tuning.checked_as)
        with suppress(ValidationError):  # of another version of autofit
            noted = _Kept.model_validate(tuning.log.kept_notes().get(VERDICTS))
            kept = noted if noted.of_what == tuning.checked_as else kept
        self.known: dict[str, GateVerdict] = dict(kept.found)
        self.refused: list[Refusal] = list(kept.refused)
        self._caveats: dict[str, tuple[str, ...]] = {}
        self._results: dict[str, Checked] = {}

    def refusal(self, plan: Plan) -> str:
        """Returns why a plan cannot become the answer, by what is known; "" if nothing speaks against it."""
        result = self._results.get(plan.key)
        if result is not None and result.checked and not result.passed:
            return result.reason
        reasons, values = {refusal.name: refusal.reason for refusal in self.refused}, self._values(plan)
        name = at_fault(values, {name: self.known[name] for name in reasons if name in self.known})
        name = name or next((value for value in values if value in reasons and value not in self.known), "")
        return f"{name}: {reasons[name]}" if name else ""

    def is_due(self, plan: Plan) -> bool:
        """Returns whether a value of a plan has no verdict, so that a check takes time before it is the answer."""
        if self._tuning.check is None or plan == self._baseline or plan.key in self._results:
            return False
        return any(value not in self.known for value in self._values(plan))

    def passes(self, plan: Plan) -> Checked:
        """Checks a plan, unless that was done, and returns the result. It is in the study when this returns."""
        check = self._tuning.check
        if check is None or plan == self._baseline:
            return Checked()
        if (found := self._results.get(plan.key)) is not None:
            return found
        began_s = self._tuning.clock.elapsed_s
        found = check(plan, self.known)
        if found.verdicts:
            self._ledger.checked(self._tuning.clock.elapsed_s - began_s)
        if found.checked:
            self._results[plan.key] = found
        self.known.update(found.verdicts)
        self.refused += [each for each in found.refused if each not in self.refused]
        for value in self._values(plan):
            self._caveats.setdefault(value, found.caveats)
        if found.verdicts:
            refused = tuple(refusal for refusal in self.refused if refusal.name in self.known)
            kept = _Kept(of_what=self._tuning.checked_as, found=self.known, refused=refused)
            self._tuning.log.note(VERDICTS, kept.model_dump(mode="json"))
        return found

    def caveats(self, plan: Plan) -> list[str]:
        """Returns what the user should know of the values of a plan."""
        return list(dict.fromkeys(text for value in self._values(plan) for text in self._caveats.get(value, ())))

    @property
    def allowed(self) -> tuple[str, ...]:
        """The values that change the gradient and are allowed nevertheless (numerics="any")."""
        refused = {refusal.name for refusal in self.refused}
        return tuple(name for name, verdict in self.known.items() if not verdict.passed and name not in refused)

    @property
    def weighing(self) -> str:
        """The quantity by which micro batches are weighted; "" for their number of samples, or if none was compared."""
        found = self.known.get(ACCUMULATION)
        return "" if found is None else found.weighing

    def _values(self, plan: Plan) -> list[str]:
        return values_to_check(plan, self._baseline, free=self._free)


class _Kept(Strict):
    """The verdicts in a study, and the digest of the workload, device and versions for which they hold."""

    of_what: str
    found: Mapping[str, GateVerdict] = {}
    refused: tuple[Refusal, ...] = ()


class Answers:
    """The plans that are proven and checked, best last.

    Attributes:
        taken: the trial of each answer, in the order in which they came.
        log: the same for the report.
        unproven: each proof that failed, by the key of its plan, which cannot be the answer any more.
    """

    def __init__(self, runner: TrialRunner, checks: Checks) -> None:
        self._runner, self._tuning, self._ledger = runner, runner.tuning, runner.ledger
        self._checks = checks
        self._objective, self._space = runner.tuning.objective, runner.tuning.space
        # Before a race, a plan replaces the answer if its probe was faster by more than the noise of two probes.
        self._ahead = 1 + min(PROBE_NOISE_RATIO, runner.tuning.noise_ratio)
        self.taken: list[Trial] = []
        self.log: list[Answered] = []
        self.unproven: dict[str, Trial] = {}
        runner.so_far = lambda: self.ratio

    @property
    def best(self) -> Trial | None:
        """The answer; None before there is one."""
        return self.taken[-1] if self.taken else None

    def terms(self, plan: Plan, expected_s: float | None) -> RunTerms:
        """Returns the terms of a probe: what it must beat to continue to its proof, and how long it may take."""
        above = None
        if self._space.unpinned(plan) is None:
            best = self.best
            above = 0.0 if best is None else self._objective.score(self._probe_of(best)) * self._ahead
        return RunTerms(objective=self._objective, above=above, limit_s=self._ledger.limit_s(expected_s))

    def consider(self, trial: Trial) -> bool:
        """Makes the plan of a new trial the answer, if it is faster, proven and checked. Returns whether it is now.

        A plan that is not proven yet is proven in a run of its own, if there is time.
        """
        if not self._is_ahead(trial) or self._checks.refusal(trial.plan):
            return False
        if not is_proven(trial):
            if self._ledger.proof_s(measurement_of(trial)) > self._ledger.left_s():
                return False
            self._runner.say_running(trial.plan, None)
            trial = self._runner.attempt(trial.plan, Purpose.PROOF)
            self._runner.say_finished("proof", trial)
            if not trial.outcome.measured:
                if trial.outcome.status not in CUT_OFF:
                    self.unproven[trial.plan.key] = trial
                return False
        if self.objection(trial.plan):
            return False
        self.make(trial)
        return True

    def make(self, trial: Trial) -> None:
        """Makes a plan that is proven and checked the answer."""
        self.taken = [*(t for t in self.taken if t.plan != trial.plan), trial]
        self._tell()

    def drop(self, plan: Plan) -> None:
        """Removes a plan whose later proof failed: the answer before it is the answer again."""
        self.taken = [trial for trial in self.taken if trial.plan != plan]
        self._tell()

    def of(self, plan: Plan) -> Trial | None:
        """Returns the proven trial of a plan that was an answer; None if it was none."""
        return next((trial for trial in reversed(self.taken) if trial.plan == plan), None)

    def fall_back(self) -> None:
        """Takes the baseline, which ran at least one whole step before the time ended, if there is no answer.

        An interrupt may have come between the end of its run and the record.
        """
        for trial in self._runner.trials:
            if trial.outcome.measured and trial.purpose is Purpose.PROBE and not trial.earlier:
                self._runner.record.setdefault(trial.plan.key, trial)
        baseline = self._runner.record.get(self._space.baseline.key)
        if self.taken or baseline is None or not baseline.outcome.measured or self._space.unpinned(baseline.plan):
            return
        self.make(baseline)

    def settle(self, trials: Iterable[Trial]) -> None:
        """Takes the fastest of other trials that are proven and pass by known verdicts, if there is no answer."""
        if not self.taken:
            proven = [trial for trial in trials if is_proven(trial)]
            for trial in sorted(proven, key=lambda t: self._objective.score(measurement_of(t))):
                if self._space.unpinned(trial.plan) is None and not self._checks.is_due(trial.plan):
                    self.consider(trial)

    def _probe_of(self, trial: Trial) -> Measurement:
        """Returns the measurement of a plan's probe, which times more steps than a proof of its own."""
        probe = self._runner.record.get(trial.plan.key, trial)
        return measurement_of(probe if probe.outcome.measured else trial)

    def _is_ahead(self, trial: Trial) -> bool:
        """Returns whether a plan is faster than the answer by more than noise."""
        if not trial.outcome.measured or self._space.unpinned(trial.plan) or trial.plan.key in self.unproven:
            return False
        best, baseline = self.best, self._space.baseline
        if best is None:
            return True
        ours, theirs = measurement_of(trial), self._probe_of(best)
        if keeps_batch(best.plan, baseline) and not keeps_batch(trial.plan, baseline):
            return quotient(ours, theirs, self._objective, self._tuning.noise_ratio).low > 1
        return self._objective.score(ours) > self._ahead * self._objective.score(theirs)

    def objection(self, plan: Plan) -> str:
        """Returns why a plan may not be the answer; "" if it keeps the gradient.

        It is checked if that is not known and there is time.
        """
        if self._checks.is_due(plan):
            if self._ledger.check_s() > self._ledger.left_s():
                self._runner.say("stage", f"{self._runner.named(plan)}: no time to check its gradient")
                return "there was no time to check its gradient; give more time"
            self._runner.say("stage", f"checking the gradient of {self._runner.named(plan)}")
        found = self._checks.passes(plan)
        if found.passed:
            return ""
        self._runner.say("stage", f"{self._runner.named(plan)}: not the answer, {found.reason}")
        return self._checks.refusal(plan) or found.reason or "its gradient could not be checked"

    def _tell(self) -> None:
        """Reports the answer, if it is another plan than the last one reported."""
        if self.best is None or (self.log and self.log[-1].plan == self.best.plan):
            return
        plan, ratio = self.best.plan, self.ratio
        self.log.append(Answered(at_s=self._tuning.clock.elapsed_s, plan=plan, ratio=ratio))
        factor = "" if ratio is None else f", {ratio:.2f}x the baseline's throughput"
        self._runner.say("answer", f"{self._runner.named(plan)}: the answer so far{factor}", plan=plan)

    @property
    def ratio(self) -> float | None:
        """Throughput of the answer over that of the baseline, by probes; None if one of them is unknown.

        It is unknown as well if the proof of the answer contradicts its probe.
        """
        baseline = self._runner.record.get(self._space.baseline.key)
        if self.best is None or baseline is None or not baseline.outcome.measured:
            return None
        proof, shown = measurement_of(self.best), self._objective.score(self._probe_of(self.best))
        if proof_contradicts(proof, self._objective.score(proof), shown):
            return None
        found = shown / self._objective.score(measurement_of(baseline))
        return found if math.isfinite(found) else None


def is_proven(trial: Trial) -> bool:
    """Returns whether a trial has the whole steps of a proof."""
    measured = trial.outcome.measured and trial.outcome.measurement is not None
    return measured and (trial.purpose is Purpose.PROOF or measurement_of(trial).proven)
