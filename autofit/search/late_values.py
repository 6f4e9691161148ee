"""Late values: values of knobs of which a process keeps the first, tried on the proven plan alone.

cuDNN, for one, keeps the kernel that it chose for a convolution, whatever a flag says later. Two values cannot be
compared in one process, and a process for each plan would cost more than the search. So the proven plan runs with and
without such a value in turn (A B, B A), each time as a proof in a fresh process.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan, same_value
from autofit.core.recommendation import Candidate, Ratio
from autofit.core.trial import Purpose
from autofit.core.units import format_duration
from autofit.search.bench import RestartableBench
from autofit.search.explanations import OF_RECOMMENDED
from autofit.search.race import MIN_ROUNDS, pair
from autofit.search.trial_runner import TrialRunner
from autofit.search.tuning import Findings

PROOFS = 2 * MIN_ROUNDS
"""Number of proofs that a decision for a value needs: as many pairs as in a race."""
FIRST_ROUNDS = 2
"""Number of pairs after which a value is given up if it is not ahead by more than the tie margin on average."""


def with_late_values(findings: Findings, runner: TrialRunner) -> Findings:
    """Returns the findings with each late value that surely makes the proven plan faster, and what was found of others.

    Args:
        findings: the result of a search.
        runner: runs plans; holds what the search measured.
    """
    bench = runner.tuning.fresh
    if bench is None:
        return findings
    for knob in runner.tuning.space.facts.late:
        for value in knob.values:
            if not same_value(value, knob.default):
                changed = findings.plan.replace(**{knob.name: value})
                findings = LateValue(f"{knob.name}={value}", changed, findings, runner, bench).tried()
    counts = Counter(trial.outcome.status.value for trial in runner.trials)
    return replace(findings, trials=tuple(runner.trials), counts=dict(counts))


@dataclass(slots=True)
class LateValue:
    """A value of a late knob, compared with the proven plan without it.

    Attributes:
        name: the value as a person reads it.
        plan: the proven plan with the value.
        findings: the result of the search so far.
        runner: runs and records plans.
        bench: starts the fresh processes.
    """

    name: str
    plan: Plan
    findings: Findings
    runner: TrialRunner
    bench: RestartableBench
    _outcomes: dict[str, list[Outcome]] = field(default_factory=dict)

    def tried(self) -> Findings:
        """Runs both plans if there is time, and returns the findings with the one to recommend."""
        needed_s, left_s = PROOFS * self.bench.fresh_proof_s, self.runner.time.left_s()
        if needed_s > left_s:
            what = f"{PROOFS} proofs in fresh processes, about {format_duration(needed_s)}"
            more = f"Give {format_duration(needed_s - left_s)} more"
            # Not complete, so that this is not the known answer of a search that has more time.
            return self._saying(f"{self.name} was not tried on the plan: it needs {what}. {more}", complete=False)
        self._outcomes = {self.findings.plan.key: [], self.plan.key: []}
        self.runner.phase, self.runner.most_left_s = "proof", self._most_left_s
        self.runner.say("stage", f"trying {self.name} on the plan, in fresh processes")
        order = (self.findings.plan, self.plan)
        for done in range(1, MIN_ROUNDS + 1):
            for plan in order:
                if failure := self._prove(plan):
                    return self._saying(f"{self.name} was tried on the plan and left out: {failure}")
            order = order[::-1]
            if done >= FIRST_ROUNDS and self._ratio().value <= 1 + self.runner.tuning.objective.tie_ratio:
                break
        return self._judged(self._ratio())

    def _prove(self, plan: Plan) -> str:
        """Proves a plan in a fresh process; returns how that failed, or ""."""
        self.runner.say_running(plan, None)
        trial = self.runner.attempt(plan, Purpose.PROOF, self._afresh)
        self._outcomes[plan.key].append(trial.outcome)
        self.runner.say_finished("proof", trial)
        if trial.outcome.measured:
            return ""
        which = "with" if plan == self.plan else "without"
        return f"a proof {which} it failed in a fresh process: {trial.outcome.status.value}, {trial.outcome.reason}"

    def _afresh(self, plan: Plan, purpose: Purpose) -> Outcome:
        found = self.bench.prove_under(plan, {}, self.runner.time.left_s())
        if found is None:
            return Outcome(status=Status.SKIPPED, reason="there was no time left, or no process could be opened")
        return found[1]

    def _most_left_s(self) -> float:
        return (PROOFS - sum(map(len, self._outcomes.values()))) * self.bench.fresh_proof_s

    def _ratio(self) -> Ratio:
        """Returns the throughput with the value over that without it."""
        score = self.runner.tuning.objective.score
        logs = [
            [math.log(score(each.measurement)) for each in self._outcomes[plan.key] if each.measurement is not None]
            for plan in (self.plan, self.findings.plan)
        ]
        return pair(*logs).ratio()

    def _judged(self, ratio: Ratio) -> Findings:
        """Returns the findings with the plan to recommend, and the other one among the alternatives."""
        found = f"{ratio} of the throughput without it, in {ratio.pairs} pairs of proofs in fresh processes"
        if ratio.pairs < MIN_ROUNDS or ratio.low <= 1 + self.runner.tuning.objective.tie_ratio:
            tried = self._candidate(self.plan, self._outcomes[self.plan.key][-1], ratio)
            findings = self._saying(f"{self.name} was tried on the plan and left out: {found}")
            return replace(findings, alternatives=_with(tried, findings.alternatives))
        return self._taken(ratio, found)

    def _taken(self, ratio: Ratio, found: str) -> Findings:
        """Returns the findings with the value: all figures move to the scale of the race by its ratio."""
        before, inverse = self.findings, _inverse(ratio)
        proof = self._outcomes[self.plan.key][-1].measurement
        assert proof is not None, "a measured outcome has a measurement"
        others = tuple(
            each.model_copy(
                update={
                    "over_recommended": _times(each.over_recommended, inverse),
                    "note": each.note.replace(OF_RECOMMENDED, f"{OF_RECOMMENDED} without {self.name}"),
                }
            )
            for each in before.alternatives
        )
        if before.plan != self.runner.baseline:
            plain = self._candidate(before.plan, self.runner.record[before.plan.key].outcome, inverse)
            lighter = before.proof.memory.judged_bytes < proof.memory.judged_bytes
            others = _with(plain.model_copy(update={"on_front": lighter}), others)
        findings = self._saying(f"{self.name} was tried on the plan after the race: {found}")
        return replace(
            findings,
            plan=self.plan,
            proof=proof,
            gain=_times(before.gain, ratio),
            rate_per_s=None if before.rate_per_s is None else before.rate_per_s * ratio.value,
            alternatives=others,
            estimate=None,
            untried="",
        )

    def _candidate(self, plan: Plan, outcome: Outcome, ratio: Ratio) -> Candidate:
        """Returns the plan that is not recommended, `ratio` times as fast as the other; with and without the value."""
        gain, rate_per_s = self.findings.gain, self.findings.rate_per_s
        if plan == self.plan and rate_per_s is not None:
            gain, rate_per_s = _times(gain, ratio), rate_per_s * ratio.value
        note = f"{ratio} {OF_RECOMMENDED}, in {ratio.pairs} pairs of proofs in fresh processes"
        return Candidate(
            plan=plan, outcome=outcome, gain=gain, rate_per_s=rate_per_s, over_recommended=ratio, note=note
        )

    def _saying(self, caveat: str, *, complete: bool = True) -> Findings:
        complete = complete and self.findings.complete
        return replace(self.findings, caveats=(*self.findings.caveats, caveat), complete=complete)


def _with(candidate: Candidate, others: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Returns the others with a candidate before the first that is slower."""
    rate_per_s = candidate.rate_per_s or 0.0
    place = next((at for at, each in enumerate(others) if (each.rate_per_s or 0.0) < rate_per_s), len(others))
    return (*others[:place], candidate, *others[place:])


def _inverse(ratio: Ratio) -> Ratio:
    return Ratio(value=1 / ratio.value, low=1 / ratio.high, high=1 / ratio.low, pairs=ratio.pairs)


def _times(first: Ratio | None, second: Ratio) -> Ratio | None:
    """Returns the product of two ratios that were measured apart; the second if the first is that of one plan."""
    if first is None or first.low == first.high:
        return None if first is None else second
    value = first.value * second.value
    half = math.hypot(*(math.log(ratio.high / ratio.low) / 2 for ratio in (first, second)))
    pairs = min(first.pairs, second.pairs)
    return Ratio(value=value, low=value * math.exp(-half), high=value * math.exp(half), pairs=pairs)
