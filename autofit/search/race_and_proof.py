"""Race and proof: races the best plans and the baseline, proves the winner, and explains the choice."""

from collections import Counter
from collections.abc import Callable, Mapping, Set

from autofit.core.estimate import Estimate
from autofit.core.gate_verdict import Checked, at_fault, values_to_check
from autofit.core.measurement import Measurement
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Ratio
from autofit.core.trial import Purpose, Trial
from autofit.search.choice import choose, finalists, from_cold, measurement_of, ranked
from autofit.search.common_scale import CommonScale
from autofit.search.evidence import Placing
from autofit.search.explanations import Explanations, failed_in_race
from autofit.search.finalists import Finalists
from autofit.search.loop import SearchEnd
from autofit.search.no_answer import nothing_measured, nothing_pinned, nothing_proven
from autofit.search.pareto import FrontPoint, front
from autofit.search.race import MAX_ROUNDS, MIN_ROUNDS, Race, run_race
from autofit.search.trial_runner import TrialRunner
from autofit.search.tuning import Findings

MAX_PROOFS = 5
"""Give up after this many failed proofs."""
RACE_RATIO, RACE_S = 1.0, 10.0
"""An undecided race ends, after the minimum number of rounds, once it has taken this share of the search before it and
at least this many seconds. The seconds count where steps are short: there more rounds cost little."""
LONG_RACE_RATIO, RACE_LOSS = 3.0, 0.003
"""Longer share, which applies while recommending the current leader would lose more than `RACE_LOSS` on average, as a
log ratio. That is so where noise is large. Scored by scripts/bench/search, with 0.002 and 0.005, and with 4 and 5 times
the search."""


class Final:
    """The race and the proof.

    Args:
        runner: runs plans; holds what the search phase measured.
        end: how the search phase ended.
        estimates: estimate of each plan before it first ran, by its key.
        consider: probes another plan, unless it is screened out.

    Raises:
        AutofitError: nothing was measured; see `autofit.search.no_answer.nothing_measured`.
    """

    def __init__(
        self,
        runner: TrialRunner,
        end: SearchEnd,
        estimates: Mapping[str, Estimate],
        consider: Callable[[Plan], Trial],
    ) -> None:
        self._runner, self._tuning, self._time = runner, runner.tuning, runner.time
        self._end, self._estimates, self._consider = end, estimates, consider
        self._objective = self._tuning.objective
        self._record: Mapping[str, Trial] = runner.record
        if self._objective.planned_samples is not None:
            self._record = {t.plan.key: t for t in from_cold(runner.record.values(), runner.trials)}
        self._measured = ranked(self._record.values(), self._objective)
        if not self._measured:
            left_out = self._tuning.space.facts.refused
            raise nothing_measured(runner.trials, self._tuning.budget, end.stopped, end.early, estimates, left_out)
        self._baseline = self._record[runner.baseline.key]
        self._scale = CommonScale(self._objective, self._measured, runner.elsewhere)
        self._ratio = self._scale.ratio
        self._finalists = Finalists(runner, self._measured, self._scale)
        self._searched_s, self._round_s = self._tuning.clock.elapsed_s, 0.0
        self._unproven: dict[str, str] = {}
        self._failed: list[Trial] = []
        self._caveats: list[str] = []

    def findings(self) -> Findings:
        """Races the finalists, proves the winner, and returns the result."""
        self._race(self._measured)
        winner, proof = self._prove()
        self._scale.anchor(winner)
        trials = tuple(self._runner.trials)
        explanations = Explanations(self._runner, self._measured, self._baseline, self._scale, self._unproven)
        self._caveats += explanations.caveats(winner, self._end)
        if doubt := self._scale.doubt_of_proof(winner, proof):
            self._caveats.insert(0, doubt)
        keys = self._front(winner, proof)
        return Findings(
            plan=winner.plan,
            proof=proof,
            baseline=self._candidate(self._baseline, "", keys),
            gain=self._gain(winner),
            rate_per_s=self._scale.rate_per_s(winner),
            untried=explanations.untried(winner, self._end, self._searched_s),
            alternatives=tuple(
                self._alternative(t, winner, explanations.why_not(t, winner), keys)
                for t in self._measured
                if t.plan not in (winner.plan, self._baseline.plan)
            ),
            caveats=tuple(self._caveats),
            trials=trials,
            counts=dict(Counter(t.outcome.status.value for t in trials)),
            stopped=self._end.stopped,
            estimate=self._estimates.get(winner.plan.key),
            complete=not self._end.early,
        )

    def _race(self, left: list[Trial]) -> None:
        """Races the finalists among these plans; continues an earlier race if one of them did not run in it."""
        pool, race = finalists(left, self._runner.baseline, self._objective), self._scale.race
        self._finalists.admit(pool)
        if race is None:
            names = tuple(t.plan.key for t in self._finalists.first())
            if len(names) < 2:
                return
            baseline = self._runner.baseline.key
            race = self._scale.race = Race(names, baseline if baseline in names else None, self._objective.tie_ratio)
            self._tuning.seen.race = race
        elif all(t.plan.key in race.names for t in pool):
            return
        self._runner.phase, self._runner.most_left_s = "race", lambda: self._most_left_s(race)
        first = "continuing the race" if race.rounds else f"racing {len(race.names)} plans"
        self._runner.say("stage", f"{first} in interleaved blocks")
        self._run_race(race)

    def _run_race(self, race: Race) -> None:
        plans = {t.plan.key: t.plan for t in self._measured}
        began, self._round_s = self._tuning.clock.elapsed_s, 0.0

        def enough() -> bool:
            nonlocal began
            now = self._tuning.clock.elapsed_s
            self._round_s, began = self._finalists.shed(race, max(self._round_s, now - began)), now
            self._say_round(race, plans)
            long = race.ripe and now - self._searched_s > max(self._race_ratio(race) * self._searched_s, RACE_S)
            rest_s = max(MIN_ROUNDS - race.rounds, 1) * self._round_s  # fewer rounds decide nothing
            return long or self._time.left_s() <= rest_s + self._time.proof_s()

        def block(key: str) -> float | str:
            before_s = self._tuning.clock.elapsed_s
            result = self._block(plans[key])
            self._finalists.ran(self._tuning.clock.elapsed_s - before_s)
            return result

        def joining() -> list[str]:
            found = self._finalists.joining()
            for trial in found:
                self._runner.say("stage", f"another plan joins the race: {self._runner.named(trial.plan)}")
            return [trial.plan.key for trial in found]

        run_race(race, block, enough, joining, lambda: self._time.left_s() <= self._time.proof_s())
        if race.over:  # the last round, after which `enough` is not asked
            self._say_round(race, plans)
        note = {"rounds": race.rounds, "log_throughput": race.logs, "joined": race.joined, "left": race.left}
        self._tuning.log.note("race", note)

    def _most_left_s(self, race: Race) -> float | None:
        """Returns the seconds that the race and one proof may still take; None before the first round.

        That is the rounds left to the limits of a race (`MAX_ROUNDS`, `LONG_RACE_RATIO`), at the longest round so far.
        """
        if not race.rounds:
            return None
        began_s, now_s = self._searched_s, self._tuning.clock.elapsed_s
        open_s = max(began_s + max(LONG_RACE_RATIO * began_s, RACE_S) - now_s, 0.0) + self._round_s
        least_s = (MIN_ROUNDS - race.rounds) * self._round_s
        most_s = min((MAX_ROUNDS - race.rounds) * self._round_s, max(open_s, least_s))
        return (0.0 if race.over else most_s) + self._time.proof_s()

    def _say_round(self, race: Race, plans: Mapping[str, Plan]) -> None:
        """Reports how the plans compare after a round."""
        if not race.rounds:
            return
        leader = plans[race.leader()] if race.ripe and race.running else None
        trial = self._record[leader.key] if leader is not None else None
        gain = self._gain(trial) if trial is not None else None
        left = len(race.contenders)
        text = f"round {race.rounds}: {left} plan{'s' if left != 1 else ''} left"
        self._runner.say_round(text, leader, gain, self._standings(race))

    def _standings(self, race: Race) -> tuple[Placing, ...]:
        """Returns how the plans of the race compare now, best first."""
        trials = sorted((self._record[name] for name in race.names), key=self._scale.rate_per_s, reverse=True)
        return tuple(
            Placing(
                plan=t.plan,
                gain=self._gain(t),
                rate_per_s=self._scale.rate_per_s(t),
                note=race.left.get(t.plan.key, ""),
            )
            for t in trials
        )

    def _race_ratio(self, race: Race) -> float:
        """Returns the maximum duration of an undecided race, as a share of the search."""
        sound = self._pool([t for t in self._measured if not failed_in_race(self._scale.race, t)])
        chosen = self._choose(sound)
        rivals = [t for t in sound if t.plan.key in race.running and t is not chosen]
        loss = max((self._ratio(t, chosen).expected_gain for t in rivals), default=0.0)
        return LONG_RACE_RATIO if loss > RACE_LOSS else RACE_RATIO

    def _choose(self, pool: list[Trial]) -> Trial:
        return choose(pool, self._runner.baseline, self._objective, self._ratio, self._scale.claim)

    def _pool(self, left: list[Trial]) -> list[Trial]:
        """Returns the plans that may be chosen: those of `left` that raced, or else the finalists by their probes.

        Figures of probes and of the race are not comparable, and the race may have contradicted a probe.
        """
        pool = finalists(left, self._runner.baseline, self._objective)
        raced = [t for t in left if self._scale.raced(t)]
        if not raced:
            return pool
        if all(t is self._baseline for t in raced):  # the proofs of all others that raced failed
            raced += [t for t in pool if t is not self._baseline and self._ratio(t, self._baseline).low > 1]
        return raced

    def _block(self, plan: Plan) -> float | str:
        outcome, failed = self._runner.block(plan)
        if failed is None and outcome.measurement is not None:
            return self._objective.score(self._charged(plan, outcome.measurement))
        self._failed += [failed] if failed is not None else []
        return f"failed in the race: {outcome.status.value}, {outcome.reason}"

    def _charged(self, plan: Plan, measurement: Measurement) -> Measurement:
        """Returns a measurement of a warm run on known shapes, with the cost of warm-up and new shapes of its plan."""
        probe = measurement if plan.key not in self._record else measurement_of(self._record[plan.key])
        startup_s = measurement.startup_s if self._objective.planned_samples is None else probe.startup_s
        new_s = measurement.new_shape_s or probe.new_shape_s  # a block has measured none
        return measurement.model_copy(update={"startup_s": startup_s, "new_shape_s": new_s})

    def _prove(self) -> tuple[Trial, Measurement]:
        """Proves the winner, or the next one, up to `MAX_PROOFS` times."""
        left = [t for t in self._measured if not failed_in_race(self._scale.race, t)]
        left = [t for t in left if self._tuning.space.unpinned(t.plan) is None]
        if not left and (pinned := self._tuning.space.facts.pinned):
            raise nothing_pinned(self._pinned_trials(), pinned, self._end.early)
        while (left or (left := self._smaller())) and len(self._unproven) < MAX_PROOFS and not self._late():
            chosen = self._choose(self._pool(left))
            self._runner.phase, self._runner.most_left_s = "proof", self._time.proof_s
            self._runner.say("stage", f"proving {self._runner.named(chosen.plan)}")
            self._runner.say_running(chosen.plan, self._estimates.get(chosen.plan.key))
            trial = self._runner.attempt(chosen.plan, Purpose.PROOF)
            outcome = trial.outcome
            self._runner.say_finished("proof", trial)
            if outcome.measured and outcome.measurement is not None:
                checked = self._checked(chosen.plan)
                if checked.passed:
                    proof = self._charged(chosen.plan, outcome.measurement)
                    return self._scale.proven(chosen, proof), proof
                outcome = Outcome(status=Status.NUMERIC, reason=checked.reason, phase="proof")
                trial = trial.model_copy(update={"outcome": outcome})
            self._failed.append(trial)
            self._unproven[chosen.plan.key] = f"{outcome.status.value}: {outcome.reason}"
            self._caveats.append(
                f"{self._runner.named(chosen.plan)} was the choice, but its proof failed ({outcome.reason})"
            )
            left = [t for t in left if t is not chosen and not self._refused(t.plan)]
            self._race(left)  # without the fastest, plans that it kept out of the final may win
        raise nothing_proven(self._failed, len(self._measured), self._tuning.budget)

    def _checked(self, plan: Plan) -> Checked:
        """Returns whether a proven plan keeps the baseline's gradient, and keeps what the check found."""
        seen = self._tuning.seen
        self._runner.say("stage", f"checking the gradient of {self._runner.named(plan)}")
        checked = self._tuning.check(plan, seen.verdicts)
        seen.verdicts.update(checked.verdicts)
        known = {each.name for each in seen.refused}
        seen.refused += [each for each in checked.refused if each.name not in known]
        self._caveats += checked.caveats if checked.passed else ()
        return checked

    def _refused(self, plan: Plan) -> bool:
        """Returns whether a plan has a value that a check found at fault."""
        free = self._tuning.space.facts.global_batch_size is None
        seen = self._tuning.seen
        refused = {each.name: seen.verdicts[each.name] for each in seen.refused}
        return bool(at_fault(values_to_check(plan, self._runner.baseline, free=free), refused))

    def _pinned_trials(self) -> list[Trial]:
        return [t for t in self._runner.trials if self._tuning.space.unpinned(t.plan) is None]

    def _late(self) -> bool:
        """Returns whether the end of the time cut off a proof, so that another proof would not finish either."""
        if not self._unproven or self._time.left_s() > 0:
            return False
        return self._failed[-1].outcome.status in (Status.TIMED_OUT, Status.SKIPPED)

    def _smaller(self) -> list[Trial]:
        """Returns the last plan that was too large at half its micro batch or less, if that runs as a probe."""
        plans = [t.plan for t in self._failed if t.outcome.status.does_not_fit]
        sizes = [s for s in self._tuning.space.sizes if plans and 2 * s <= plans[-1].micro_batch_size]
        plan = self._tuning.space.at(plans[-1].combination, sizes[-1]) if sizes else None
        if plan is None or plan.key in self._runner.record:
            return []
        trial = self._consider(plan)
        return [trial] if trial.outcome.measured else []

    def _gain(self, trial: Trial) -> Ratio | None:
        return self._scale.reported(trial, self._baseline) if self._baseline.outcome.measured else None

    def _candidate(self, trial: Trial, note: str, keys: Set[str]) -> Candidate:
        gain = self._gain(trial) if trial.outcome.measured else None
        return Candidate(
            plan=trial.plan,
            outcome=trial.outcome,
            gain=gain,
            rate_per_s=self._scale.rate_per_s(trial) if trial.outcome.measured else None,
            note=note,
            on_front=trial.plan.key in keys,
        )

    def _alternative(self, trial: Trial, winner: Trial, note: str, keys: Set[str]) -> Candidate:
        found = self._candidate(trial, note, keys)
        return found.model_copy(update={"over_recommended": self._scale.reported(trial, winner)})

    def _front(self, winner: Trial, proof: Measurement) -> Set[str]:
        """Returns the keys of the plans on the Pareto front; a plan that failed after its probe is not among them."""
        others = [t for t in self._measured if t.plan != winner.plan]
        sound = [t for t in others if not failed_in_race(self._scale.race, t) and t.plan.key not in self._unproven]
        points = [
            FrontPoint(t.plan.key, self._ratio(t, winner).value, measurement_of(t).memory.judged_bytes) for t in sound
        ]
        proven = FrontPoint(winner.plan.key, 1.0, proof.memory.judged_bytes)
        return {point.key for point in front([proven, *points], self._objective.tie_ratio)}
