"""Race and proof: races the best plans and the baseline, proves the winner, and explains the choice."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from statistics import fmean

from autofit.core.answer import Candidate, Ratio
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_duration
from autofit.search.answers import CUT_OFF, is_proven
from autofit.search.choice import FrontPoint, choose, finalists, front, measurement_of, quotient, ranked
from autofit.search.common_scale import CommonScale
from autofit.search.evidence import BLOCK_CUT_OFF, BLOCK_FAILED, NOT_SETTLED, PROOF_CUT_OFF, PROOF_FAILED, Placing
from autofit.search.explanations import Explanations, failed_in_race
from autofit.search.ledger import extended
from autofit.search.loop import Loop
from autofit.search.no_answer import nothing_measured, nothing_pinned, nothing_proven
from autofit.search.race import MAX_ROUNDS, MIN_ROUNDS, Race, run_race
from autofit.search.request import Findings
from autofit.search.trial_runner import TrialRunner

LATE_WORTH = 0.02
"""Expected gain over the leader, as a log ratio, from which a plan joins a running race: where the leader's probe was
too fast, faster plans were left out. Scored by scripts/bench/claims.py."""
MOST_LATE = 3
"""Maximum number of plans that join for this reason."""


class Finalists:
    """Selects the plans that begin a race and those that join it: the most promising, as many as there is time for."""

    def __init__(self, runner: TrialRunner, measured: Sequence[Trial], scale: CommonScale) -> None:
        self._runner, self._measured, self._scale = runner, measured, scale
        self._baseline: list[Trial] = []
        self._rivals: list[Trial] = []
        self._blocks_s: list[float] = []
        self._late = 0

    def admit(self, finalists: Sequence[Trial]) -> None:
        """Sets the plans that may be the fastest by their probes, best first, and the baseline."""
        self._baseline = [t for t in finalists if t.plan == self._runner.baseline]
        rivals = [t for t in finalists if t.plan != self._runner.baseline]
        self._rivals = by_promise(rivals, self._runner.tuning.objective)

    def first(self) -> list[Trial]:
        """Returns the plans that begin: the best rival, the baseline, and others, as far as the time left goes."""
        ledger, chosen, spent_s = self._runner.ledger, list[Trial](), 0.0
        room_s = ledger.left_s() / MIN_ROUNDS
        for trial in [*self._rivals[:1], *self._baseline, *self._rivals[1:]]:
            cost_s = ledger.block_s(measurement_of(trial))
            if trial in self._rivals[:1] or spent_s + cost_s <= room_s:
                chosen, spent_s = [*chosen, trial], spent_s + cost_s
        return sorted(chosen, key=lambda t: t in self._baseline) if len(chosen) > 1 else []

    def ran(self, block_s: float) -> None:
        """Records the duration of a block, in seconds."""
        self._blocks_s.append(block_s)

    def shed(self, race: Race, round_s: float) -> float:
        """Removes the least promising plans until the minimum of rounds fits into the time left. Two stay.

        Args:
            race: after its first round, and before the last of the minimum. Otherwise nothing is removed.
            round_s: the longest round so far, in seconds.

        Returns:
            The same for the plans that stay.
        """
        while 0 < race.rounds < MIN_ROUNDS and len(race.running) > 2:
            rivals = [t.plan.key for t in self._rivals if t.plan.key in race.running]
            if len(rivals) < 2 or (MIN_ROUNDS - race.rounds) * round_s <= self._runner.ledger.left_s():
                break
            round_s *= 1 - 1 / len(race.running)
            race.leave(rivals[-1], "no time for its rounds")
        return round_s

    def joining(self) -> list[Trial]:
        """Returns the plans that join now: finalists for which there was no time before, then others that may win."""
        race = self._scale.race
        if race is None or not race.rounds or race.rounds + MIN_ROUNDS > MAX_ROUNDS:
            return []
        needed_s = MIN_ROUNDS * (len(race.running) + 1) * fmean(self._blocks_s)
        if needed_s > self._runner.ledger.left_s():
            return []
        if waiting := [t for t in self._rivals if t.plan.key not in race.names]:
            return waiting[:1]
        if not race.running or not race.ripe or self._late >= MOST_LATE:
            return []
        found = self._promising(race)
        self._late += len(found)
        return found

    def _promising(self, race: Race) -> list[Trial]:
        leading = race.leader()
        leader = next(t for t in self._measured if t.plan.key == leading)
        left = [t for t in self._measured if t.plan.key not in race.names]
        if disturbed := [t for t in left if self._trades_less(t.plan, leader.plan)]:
            return disturbed[:1]
        promises = [(self._scale.promise(t, leader), -place, t) for place, t in enumerate(left)]
        worth, _, trial = max(promises, default=(0.0, 0, leader))
        return [trial] if worth > LATE_WORTH else []

    def _trades_less(self, plan: Plan, leader: Plan) -> bool:
        """Returns whether a plan is the leader with less recomputation: if its probe was slower, it was disturbed."""
        changes = plan.changes_from(leader)
        return len(changes) == 1 and any(
            knob.values.index(changes[knob.name]) < knob.values.index(leader.values[knob.name])
            for knob in self._runner.tuning.space.facts.knobs
            if knob.trades_memory is not None and knob.name in changes
        )


def by_promise(rivals: Sequence[Trial], objective: Objective) -> list[Trial]:
    """Returns the plans by their expected gain over the one with the fastest probe, which comes first."""
    if not rivals:
        return []
    best, *others = rivals

    def worth(trial: Trial) -> float:
        return quotient(measurement_of(trial), measurement_of(best), objective).expected_gain

    return [best, *sorted(others, key=worth, reverse=True)]


MAX_PROOFS = 5
"""Give up after this many failed proofs."""
RACE_RATIO, RACE_S = 0.25, 10.0
"""An undecided race ends, after the minimum number of rounds, once it has taken this share of the search before it and
at least this many seconds. The seconds count where steps are short: there more rounds cost little. A longer race gains
nothing in scripts/bench/search and scripts/bench/claims."""
LONG_RACE_RATIO, RACE_LOSS = 3.0, 0.003
"""Longer share, which applies while recommending the current leader would lose more than `RACE_LOSS` on average, as a
log ratio. That is so where noise is large. Scored by scripts/bench/search."""


class Final:
    """The race and the proof.

    Raises:
        AutofitError: nothing was measured; see `autofit.search.no_answer.nothing_measured`.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop, runner = loop, loop.runner
        self._runner, self._tuning, self._ledger = runner, runner.tuning, runner.ledger
        self._answers, self._checks = loop.answers, loop.checks
        self._estimates = loop.feasibility.looked_at
        self._objective = self._tuning.objective
        self._record: Mapping[str, Trial] = runner.record
        self._measured = ranked(self._record.values(), self._objective)
        if not self._measured:
            left_out = (*self._tuning.space.facts.refused, *self._checks.refused)
            trials, baseline, end = runner.trials, runner.baseline, loop.end
            budget, estimates = self._tuning.budget, self._estimates
            raise nothing_measured(trials, baseline, budget, end.stopped, end.early, estimates, left_out)
        self._baseline = self._record[runner.baseline.key]
        self._scale = CommonScale(self._objective, self._measured, self._tuning.noise_ratio)
        self._ratio = self._scale.ratio
        self._finalists = Finalists(runner, self._able(), self._scale)
        self._searched_s = self._tuning.clock.elapsed_s
        self._unproven: dict[str, str] = {}
        self._failed: list[Trial] = []
        self._caveats: list[str] = []
        self._passed_over: dict[str, list[str]] = {}
        self._examined = self._endured = ""

    def settle(self) -> None:
        """Races the finalists and proves the winner, while there is time: the answer afterwards is the result.

        Raises:
            AutofitError: no plan is proven.
        """
        self._race(self._able())
        self._prove()

    def examine(self) -> None:
        """Has the steps of the answer examined, if there is surely time for it. Nothing else depends on the result."""
        answer, examine = self._answers.best, self._tuning.examine
        if examine is None or answer is None or not is_proven(answer):
            return
        limit_s = self._ledger.examination_s(measurement_of(answer))
        if limit_s <= self._ledger.left_s():
            self._runner.say("stage", f"looking at the steps of {self._runner.named(answer.plan)}")
            self._examined = examine(answer.plan, limit_s)

    def endure(self) -> None:
        """Runs the answer for a long time. The time for the search does not count meanwhile."""
        answer, tuning = self._answers.best, self._tuning
        if tuning.endure is None or answer is None or not is_proven(answer):
            return
        for_s = format_duration(tuning.prove_s)
        self._runner.say("stage", f"running {self._runner.named(answer.plan)} for {for_s}: the long proof")
        limit_s = tuning.prove_s + self._ledger.examination_s(measurement_of(answer))
        with extended(tuning.clock, limit_s):
            self._endured = tuning.endure(answer.plan, limit_s) or f"not finished within {format_duration(limit_s)}"

    def findings(self) -> Findings:
        """Returns the result: the answer, and why it was chosen."""
        answer = self._answers.best
        assert answer is not None, "a search that has measured a plan ends with an answer or an error"
        # What it is compared by with others: its probe, or else its proof.
        found, proof = self._record.get(answer.plan.key, answer), self._charged(answer.plan, measurement_of(answer))
        winner = found if found.outcome.measured else answer
        self._scale.anchor(winner)
        doubt = self._scale.doubt_of_proof(winner, proof)
        explanations = Explanations(self._runner, self._measured, self._baseline, self._scale, self._unproven, doubt)
        gain, end, trials = self._gain(winner), self._loop.end, self._runner.trials
        for why, (first, *more) in self._passed_over.items():
            also = f" (the same for {len(more)} more)" if more else ""
            self._caveats.append(f"{first} was the choice, but {why}{also}")
        doubts = [doubt] if doubt else []
        if not is_proven(answer):
            doubts.append("; ".join(("the baseline is not proven", *proof.warnings)))
        notes = (*explanations.faults(winner.plan), *self._caveats, *explanations.caveats(winner, end))
        keys = self._front(winner, proof)
        shown = (winner.plan, self._baseline.plan)
        claims = [(t, self._scale.claim(t, winner)) for t in self._measured if t.plan not in shown]
        others = [(t, None if explanations.is_unknown(over) else over) for t, over in claims]
        return Findings(
            plan=winner.plan,
            proof=proof,
            baseline=self._candidate(self._baseline, keys),
            gain=None if gain and winner is not self._baseline and explanations.is_unknown(gain) else gain,
            rate_per_s=self._scale.rate_per_s(winner),
            untried=explanations.untried(winner, end, self._searched_s),
            alternatives=tuple(self._candidate(t, keys, explanations.why_not(t, winner), over) for t, over in others),
            caveats=(*self._runner.earlier.caveats, *doubts, *notes, *self._checks.caveats(winner.plan)),
            trials=tuple(trials),
            counts=dict(Counter(t.outcome.status.value for t in trials)),
            stopped=end.stopped,
            estimate=self._estimates.get(winner.plan.key),
            interrupted=end.interrupted,
            weighing=self._checks.weighing,
            refused=tuple(self._checks.refused),
            allowed=self._checks.allowed,
            answers=tuple(self._answers.log),
            examined=self._examined,
            long_proof=self._endured,
        )

    def _able(self) -> list[Trial]:
        """Returns the measured plans that may become the answer."""
        baseline, failed = self._runner.baseline, self._answers.unproven
        refused = (t.plan.key in failed or bool(self._checks.refusal(t.plan)) for t in self._measured)
        return [t for t, out in zip(self._measured, refused, strict=True) if t.plan == baseline or not out]

    def _race(self, left: list[Trial]) -> None:
        """Races the finalists among these plans; continues an earlier race if one of them did not run in it."""
        race, baseline = self._scale.race, self._runner.baseline
        # A baseline without the pinned values cannot win, however fast it is: it keeps nobody from the race.
        able = [t for t in left if self._tuning.space.unpinned(t.plan) is None]
        pool = finalists(able, baseline, self._objective)
        pool += [t for t in left if t.plan == baseline and t not in pool]
        self._finalists.admit(pool)
        if race is None:
            names = tuple(t.plan.key for t in self._finalists.first())
            if len(names) < 2:
                return
            race = Race(names, baseline.key if baseline.key in names else None, self._objective.tie_ratio)
            self._scale.race = self._loop.race = race
        elif all(t.plan.key in race.names for t in pool):
            return
        self._runner.phase = "race"
        first = "continuing the race" if race.rounds else f"racing {len(race.names)} plans"
        self._runner.say("stage", f"{first} in interleaved blocks")
        self._run_race(race)

    def _run_race(self, race: Race) -> None:
        began, round_s = self._tuning.clock.elapsed_s, 0.0

        def enough() -> bool:
            nonlocal began, round_s
            now = self._tuning.clock.elapsed_s
            round_s, began = self._finalists.shed(race, max(round_s, now - began)), now
            self._say_round(race)
            long = race.ripe and now - self._searched_s > max(self._race_ratio(race) * self._searched_s, RACE_S)
            rest_s = max(MIN_ROUNDS - race.rounds, 1) * round_s  # fewer rounds decide nothing
            return long or self._ledger.left_s() <= rest_s

        def block(key: str) -> float | str:
            before_s = self._tuning.clock.elapsed_s
            result = self._block(self._record[key].plan)
            self._finalists.ran(self._tuning.clock.elapsed_s - before_s)
            return result

        def joining() -> list[str]:
            found = self._finalists.joining()
            for trial in found:
                self._runner.say("stage", f"another plan joins the race: {self._runner.named(trial.plan)}")
            return [trial.plan.key for trial in found]

        run_race(race, block, enough, joining, lambda: self._ledger.left_s() <= 0)
        if race.over:  # the last round, after which `enough` is not asked
            self._say_round(race)

    def _say_round(self, race: Race) -> None:
        """Reports how the plans compare after a round."""
        if not race.rounds:
            return
        leader = self._record[race.leader()] if race.ripe and race.running else None
        plan, gain = (None, None) if leader is None else (leader.plan, self._gain(leader))
        left, rate = len(race.contenders), self._scale.rate_per_s
        trials = sorted((self._record[name] for name in race.names), key=rate, reverse=True)
        standings = tuple(
            Placing(plan=t.plan, gain=self._gain(t), rate_per_s=rate(t), note=race.left.get(t.plan.key, ""))
            for t in trials
        )
        text = f"round {race.rounds}: {left} plan{'s' if left != 1 else ''} left"
        self._runner.say("race", text, plan=plan, gain=gain, standings=standings)

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
        """Returns the plans that may be chosen: those of `left` that raced, or else the finalists by their probes."""
        # Figures of probes and of the race are not comparable, and the race may have contradicted a probe.
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
        how = BLOCK_CUT_OFF if outcome.status in CUT_OFF else BLOCK_FAILED
        return f"{how}: {outcome.status.value}, {outcome.reason}"

    def _charged(self, plan: Plan, measurement: Measurement) -> Measurement:
        """Returns a measurement of a warm run on known shapes, with the cost of warm-up and new shapes of its plan."""
        probe = measurement if plan.key not in self._record else measurement_of(self._record[plan.key])
        startup_s = measurement.startup_s if self._objective.planned_samples is None else probe.startup_s
        new_s = measurement.new_shape_s or probe.new_shape_s  # a block has measured none
        return measurement.model_copy(update={"startup_s": startup_s, "new_shape_s": new_s})

    def _prove(self) -> None:
        """Makes the winner the answer, proven once more where there is time, and checked; or else the next one."""
        left = [t for t in self._able() if not failed_in_race(self._scale.race, t)]
        self._drop_failed()
        left = [t for t in left if self._tuning.space.unpinned(t.plan) is None]
        if not left and (pinned := self._tuning.space.facts.pinned):
            end, likely = self._loop.end, self._loop.feasibility.some_are_likely
            trials = [t for t in self._runner.trials if self._tuning.space.unpinned(t.plan) is None]
            why = next((why for t in trials if t.outcome.measured and (why := self._checks.refusal(t.plan))), "")
            baseline = self._runner.baseline
            raise nothing_pinned(trials, baseline, pinned, end.stopped, early=end.early, likely=likely, refused=why)
        while (left or (left := self._smaller())) and len(self._unproven) < MAX_PROOFS:
            chosen = self._choose(self._pool(left))
            why = self._settled(chosen)
            if not why:
                return
            left = [t for t in left if t is not chosen and not self._checks.refusal(t.plan)]
            self._race(left)  # without the fastest, plans that it kept out of the final may win
        if not any(t.plan == self._runner.baseline and t.outcome.status not in CUT_OFF for t in self._failed):
            self._answers.fall_back()
        if self._answers.best is None:
            raise nothing_proven(self._failed, self._runner.baseline, len(self._measured), self._tuning.budget)

    def _drop_failed(self) -> None:
        """Takes plans that failed in the race from the answers, and notes those whose proofs failed in the search."""
        for trial in self._failed:
            if trial.outcome.status not in CUT_OFF:
                self._answers.drop(trial.plan)
        for proof in self._answers.unproven.values():
            self._failed.append(proof)
            self._note_failed_proof(proof.plan, proof.outcome)

    def _settled(self, chosen: Trial) -> str:
        """Proves and checks a plan, and makes it the answer; returns why it is not."""
        known = self._answers.of(chosen.plan) or (chosen if is_proven(chosen) else None)
        proof = known
        if self._ledger.proof_s(measurement_of(chosen)) <= self._ledger.left_s():
            proof = self._proof(chosen)
            if proof is None and (known is None or self._failed[-1].outcome.status not in CUT_OFF):
                self._answers.drop(chosen.plan)
                return self._unproven[chosen.plan.key]
            if proof is None:
                del self._unproven[chosen.plan.key]
                outcome = self._failed[-1].outcome
                self._caveats.append(f"the last proof did not end ({outcome.status.value}: {outcome.reason})")
            proof = proof or known
        if proof is None:
            return self._not_now(chosen, "there was no time to prove it; give more time")
        if why := self._answers.objection(chosen.plan):
            return self._not_now(chosen, why)
        self._answers.make(proof)
        return ""

    def _not_now(self, chosen: Trial, why: str) -> str:
        self._unproven[chosen.plan.key] = f"{NOT_SETTLED} {why}"
        self._passed_over.setdefault(why, []).append(self._runner.named(chosen.plan))
        return why

    def _proof(self, chosen: Trial) -> Trial | None:
        """Returns the trial of a proof; None if it failed, which is recorded."""
        self._runner.phase = "proof"
        self._runner.say("stage", f"proving {self._runner.named(chosen.plan)}")
        self._runner.say_running(chosen.plan, self._estimates.get(chosen.plan.key))
        trial = self._runner.attempt(chosen.plan, Purpose.PROOF)
        outcome = trial.outcome
        self._runner.say_finished("proof", trial)
        if outcome.measured:
            return trial
        self._failed.append(trial)
        self._note_failed_proof(chosen.plan, outcome)
        return None

    def _note_failed_proof(self, plan: Plan, outcome: Outcome) -> None:
        if outcome.status in CUT_OFF:
            self._unproven[plan.key] = f"{PROOF_CUT_OFF}: {outcome.status.value}, {outcome.reason}"
        else:
            self._unproven[plan.key] = f"{PROOF_FAILED} ({outcome.status.value}: {outcome.reason})"
            self._caveats.append(f"{self._runner.named(plan)} was the choice, but its proof failed ({outcome.reason})")

    def _smaller(self) -> list[Trial]:
        """Returns the last plan that was too large at half its micro batch or less, if that runs as a probe."""
        plans = [t.plan for t in self._failed if t.outcome.status.does_not_fit]
        sizes = [s for s in self._tuning.space.sizes if plans and 2 * s <= plans[-1].micro_batch_size]
        plan = self._tuning.space.at(plans[-1].combination, sizes[-1]) if sizes else None
        if plan is None or plan.key in self._runner.record:
            return []
        trial = self._loop.consider(plan)
        return [trial] if trial.outcome.measured else []

    def _gain(self, trial: Trial) -> Ratio | None:
        return self._scale.claim(trial, self._baseline) if self._baseline.outcome.measured else None

    def _candidate(self, trial: Trial, keys: Set[str], note: str = "", over: Ratio | None = None) -> Candidate:
        measured = trial.outcome.measured
        return Candidate(
            plan=trial.plan,
            outcome=trial.outcome,
            gain=self._gain(trial) if measured else None,
            rate_per_s=self._scale.rate_per_s(trial) if measured else None,
            over_recommended=over,
            note=note,
            on_front=trial.plan.key in keys,
        )

    def _front(self, winner: Trial, proof: Measurement) -> Set[str]:
        """Returns the keys of the plans on the Pareto front; a plan that failed after its probe is not among them."""
        others = [t for t in self._measured if t.plan != winner.plan]
        sound = [t for t in others if not failed_in_race(self._scale.race, t) and t.plan.key not in self._unproven]
        points = [
            FrontPoint(t.plan.key, self._ratio(t, winner).value, measurement_of(t).memory.judged_bytes) for t in sound
        ]
        proven = FrontPoint(winner.plan.key, 1.0, proof.memory.judged_bytes)
        return {point.key for point in front([proven, *points], self._objective.tie_ratio)}
