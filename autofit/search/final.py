"""The final: race the best few with the user's own setting, prove the winner, say why."""

from collections import Counter
from collections.abc import Set

from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Ratio
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_duration
from autofit.search.choice import choose, finalists, from_cold, keeps_batch, lighter, measurement_of, ranked, ties
from autofit.search.common_scale import CommonScale
from autofit.search.endings import nothing_measured, nothing_proven
from autofit.search.entrants import Entrants
from autofit.search.loop import Loop, summary
from autofit.search.pareto import FrontPoint, front
from autofit.search.race import MIN_ROUNDS, Race, run_race
from autofit.search.tuning import Findings

NOT_RUN = (Status.SKIPPED, Status.INTERRUPTED)
MAX_PROOFS = 5
"""So many plans that ran as probes and fail as proofs say that it is not the plan."""
RACE_RATIO, RACE_S = 1.0, 10.0
"""An undecided race ends when it took this share of the search before it, and so many seconds, once the least number of
rounds is run: where steps are short, a few of them tell little and more cost nothing."""
LONG_RACE_RATIO, RACE_LOSS = 3.0, 0.003
"""The share while more than this, as a log ratio, is lost on average by recommending what is ahead now: where noise is
large. Scored by scripts/bench/search.py, with 0.002 and 0.005, and with 4 and 5 times the search."""


class Final:
    """The race, the proof and what is said about them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._tuning = loop.tuning
        self._objective = loop.tuning.objective
        self._record = loop.record
        if self._objective.planned_samples is not None:
            self._record = {t.plan.key: t for t in from_cold(loop.record.values(), loop.trials)}
        self._measured = ranked(self._record.values(), self._objective)
        if not self._measured:
            raise nothing_measured(loop.trials, loop.tuning.budget, loop.stopped, loop.early, loop.predicted)
        self._baseline = self._record[loop.baseline.key]
        self._scale = CommonScale(self._objective, self._measured)
        self._ratio = self._scale.ratio
        self._entrants = Entrants(loop, self._measured, self._scale)
        self._searched_s = loop.tuning.clock.elapsed_s
        self._unproven: dict[str, str] = {}
        self._failed: list[Trial] = []
        self._caveats: list[str] = []

    def findings(self) -> Findings:
        """Races, proves, and returns what was found."""
        self._race(self._measured)
        winner, proof = self._prove()
        trials = tuple(self._loop.trials)
        self._remarks(winner)
        if doubt := self._scale.doubt_of_proof(winner, proof):
            self._caveats.append(doubt)
        keys = self._front(winner, proof)
        return Findings(
            plan=winner.plan,
            proof=proof,
            baseline=self._candidate(self._baseline, "", keys),
            gain=self._gain(winner),
            rate_per_s=self._scale.rate_per_s(winner),
            untried=self._untried(winner),
            alternatives=tuple(
                self._candidate(t, self._why_not(t, winner), keys)
                for t in self._measured
                if t.plan not in (winner.plan, self._baseline.plan)
            ),
            caveats=tuple(self._caveats),
            trials=trials,
            counts=dict(Counter(t.outcome.status.value for t in trials)),
            stopped=self._loop.stopped,
            predicted=self._loop.predicted.get(winner.plan.key),
        )

    def _race(self, left: list[Trial]) -> None:
        """Races the finalists among these plans, or goes on with the race that was where they did not run in it."""
        pool, race = finalists(left, self._loop.baseline, self._objective), self._scale.race
        self._entrants.admit(pool)
        if race is None:
            names = tuple(t.plan.key for t in self._entrants.first())
            if len(names) < 2:
                return
            own = self._loop.baseline.key
            race = self._scale.race = Race(names, own if own in names else None, self._objective.tie_ratio)
        elif all(t.plan.key in race.names for t in pool):
            return
        self._loop.say("stage", f"racing {len(pool)} plans in interleaved blocks")
        self._run_race(race)

    def _run_race(self, race: Race) -> None:
        plans = {t.plan.key: t.plan for t in self._measured}
        began, round_s = self._tuning.clock.elapsed_s, 0.0

        def enough() -> bool:
            nonlocal round_s, began
            now = self._tuning.clock.elapsed_s
            round_s, began = max(round_s, now - began), now
            if race.rounds:
                self._loop.say("race", f"round {race.rounds}: {len(race.running)} plans left")
            long = race.ripe and now - self._searched_s > max(self._race_ratio(race) * self._searched_s, RACE_S)
            rest_s = max(MIN_ROUNDS - race.rounds, 1) * round_s  # too few rounds would tell nothing
            return long or self._loop.time_left_s() <= rest_s + self._loop.proof_s()

        def block(key: str) -> float | str:
            before_s = self._tuning.clock.elapsed_s
            result = self._block(plans[key])
            self._entrants.ran(self._tuning.clock.elapsed_s - before_s)
            return result

        run_race(race, block, enough, lambda: [t.plan.key for t in self._entrants.joining()])
        note = {"rounds": race.rounds, "log_throughput": race.logs, "joined": race.joined, "left": race.left}
        self._tuning.log.note("race", note)

    def _race_ratio(self, race: Race) -> float:
        """Returns how long an undecided race may last, as a share of the search."""
        sound = self._pool([t for t in self._measured if not self._failed_in_race(t)])
        chosen = self._choose(sound)
        rivals = [t for t in sound if t.plan.key in race.running and t is not chosen]
        loss = max((self._ratio(t, chosen).expected_gain for t in rivals), default=0.0)
        return LONG_RACE_RATIO if loss > RACE_LOSS else RACE_RATIO

    def _choose(self, pool: list[Trial]) -> Trial:
        return choose(pool, self._loop.baseline, self._objective, self._ratio, self._scale.claim)

    def _pool(self, left: list[Trial]) -> list[Trial]:
        """Returns who may be chosen: those of `left` that raced; where there are none, the finalists by their probes.

        What a probe says is of another kind than what a race says, and the race may have contradicted it.
        """
        pool = finalists(left, self._loop.baseline, self._objective)
        raced = [t for t in left if self._scale.raced(t)]
        if not raced:
            return pool
        if all(t is self._baseline for t in raced):  # the proofs of all others that raced failed
            raced += [t for t in pool if t is not self._baseline and self._ratio(t, self._baseline).low > 1]
        return raced

    def _block(self, plan: Plan) -> float | str:
        outcome = self._loop.evaluate(plan, Purpose.BLOCK)
        if outcome.measured and outcome.measurement is not None:
            return self._objective.score(self._charged(plan, outcome.measurement))
        number = self._tuning.log.begin(plan, Purpose.BLOCK)
        trial = self._tuning.log.finish(number, outcome)
        self._loop.trials.append(trial)
        self._failed.append(trial)
        self._loop.refuse_poison(outcome)
        return f"failed in the race: {outcome.status.value}, {outcome.reason}"

    def _charged(self, plan: Plan, measurement: Measurement) -> Measurement:
        """Returns a measurement that was made warm, with the start that its plan is charged where that counts."""
        if self._objective.planned_samples is None or plan.key not in self._record:
            return measurement
        return measurement.model_copy(update={"startup_s": measurement_of(self._record[plan.key]).startup_s})

    def _prove(self) -> tuple[Trial, Measurement]:
        """Proves the winner, or the next one, up to `MAX_PROOFS` times."""
        left = [t for t in self._measured if not self._failed_in_race(t)]
        while (left or (left := self._smaller())) and len(self._unproven) < MAX_PROOFS and not self._late():
            chosen = self._choose(self._pool(left))
            self._loop.say("stage", f"proving {chosen.plan}")
            trial = self._loop.attempt(chosen.plan, Purpose.PROOF)
            outcome = trial.outcome
            self._loop.say("proof", f"{chosen.plan}: {summary(outcome, self._objective)}", trial)
            if outcome.measured and outcome.measurement is not None:
                return chosen, self._charged(chosen.plan, outcome.measurement)
            self._failed.append(trial)
            self._unproven[chosen.plan.key] = f"{outcome.status.value}: {outcome.reason}"
            self._caveats.append(f"{chosen.plan} was to be recommended, but its proof failed ({outcome.reason})")
            left = [t for t in left if t is not chosen]
            self._race(left)  # with the fastest gone, plans that it kept out of the final may be next
        raise nothing_proven(self._failed, len(self._measured), self._tuning.budget)

    def _late(self) -> bool:
        """Whether a proof was cut off by the end of the time: none of another plan would come further."""
        if not self._unproven or self._loop.time_left_s() > 0:
            return False
        return self._failed[-1].outcome.status in (Status.TIMED_OUT, Status.SKIPPED)

    def _smaller(self) -> list[Trial]:
        """Returns the last plan that was too large, at half its micro batch or less, if that runs as a probe."""
        plans = [t.plan for t in self._failed if t.outcome.status.does_not_fit]
        sizes = [s for s in self._tuning.space.sizes if plans and 2 * s <= plans[-1].micro_batch_size]
        plan = self._tuning.space.at(plans[-1].combination, sizes[-1]) if sizes else None
        if plan is None or plan.key in self._loop.record:
            return []
        trial = self._loop.consider(plan)
        return [trial] if trial.outcome.measured else []

    def _gain(self, trial: Trial) -> Ratio | None:
        return self._scale.claim(trial, self._baseline) if self._baseline.outcome.measured else None

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

    def _front(self, winner: Trial, proof: Measurement) -> Set[str]:
        """Returns the keys of the plans on the Pareto front; a plan that failed after its probe is not among them."""
        others = [t for t in self._measured if t.plan != winner.plan]
        sound = [t for t in others if not self._failed_in_race(t) and t.plan.key not in self._unproven]
        points = [
            FrontPoint(t.plan.key, self._ratio(t, winner).value, measurement_of(t).memory.judged_bytes) for t in sound
        ]
        own = FrontPoint(winner.plan.key, 1.0, proof.memory.judged_bytes)
        return {point.key for point in front([own, *points], self._objective.tie_ratio)}

    def _failed_in_race(self, trial: Trial) -> str:
        race = self._scale.race
        reason = race.left.get(trial.plan.key, "") if race is not None else ""
        return reason if reason.startswith("failed") else ""

    def _why_not(self, trial: Trial, winner: Trial) -> str:
        failed = self._failed_in_race(trial)
        if failed or trial.plan.key in self._unproven:
            return failed or f"its proof failed ({self._unproven[trial.plan.key]})"
        ratio, scale = self._scale.claim(trial, winner), self._scale
        speed = f"{ratio} of the recommended plan's throughput"
        if ratio.pairs:
            speed = f"{speed}, in {ratio.pairs} paired blocks"
        elif scale.decided_by_race:
            return f"not raced; by its probe {speed}"
        else:
            speed = f"{speed}, by separate probes"
        if keeps_batch(winner.plan, self._baseline.plan) and not keeps_batch(trial.plan, self._baseline.plan):
            return f"not surely faster, and changes the batch: {speed}" if ratio.value > 1 else speed
        tied = ties(self._ratio(winner, trial), self._objective.tie_ratio)
        return f"a tie, decided by {self._decider(trial, winner)}: {speed}" if tied else speed

    def _decider(self, trial: Trial, winner: Trial) -> str:
        """Returns what decided between two plans that tie, see `autofit.search.choice.lightest`."""
        ours, theirs = (measurement_of(t).memory.judged_bytes for t in (winner, trial))
        if trial.plan.global_batch_size != winner.plan.global_batch_size:
            return "the batch"
        return "memory" if lighter(ours, theirs) else "the number of changes"

    def _untried(self, winner: Trial) -> str:
        """Returns why the user's own setting alone was measured, and what more would need; "" if something else was."""
        if winner is not self._baseline or len(self._measured) > 1:
            return ""
        ran = [t for t in self._loop.trials if t.plan != winner.plan and t.outcome.status not in NOT_RUN]
        if ran:
            told = "No other plan" if len(ran) > 1 else f"{ran[0].plan} was tried and"
            return f"{told} ran: {ran[-1].outcome.status.value}, {ran[-1].outcome.reason}".rstrip(".")
        if not self._loop.early:
            return "There was nothing else to try that may fit and be faster"
        wanted, probe_s = self._loop.wanted, self._loop.probe_s()
        needed_s = self._searched_s + (2 + 2 * MIN_ROUNDS) * probe_s + self._loop.proof_s()
        next_one = "" if wanted is None else f"; {wanted} was next"
        return (
            f"Nothing else was tried: {self._loop.stopped}{next_one}. A probe takes {format_duration(probe_s)} here: "
            f"give at least {format_duration(needed_s)}"
        )

    def _remark_on_race(self) -> None:
        race = self._scale.race
        if race is None or race.decided or not race.rounds:
            return
        if self._scale.decided_by_race:
            told = f"the race ended after {race.rounds} rounds, undecided among {len(race.running)} plans"
            self._caveats.append(f"{told}: they are close")
        else:
            told = f"there was time for {race.rounds} of the {MIN_ROUNDS} rounds that a race needs at least"
            self._caveats.append(f"{told}: all figures are those of separate probes")

    def _remarks(self, winner: Trial) -> None:
        """Adds the caveats that do not stem from the proof."""
        self._remark_on_race()
        own, gain = self._baseline, self._gain(winner)
        if gain is None:
            self._caveats.append(
                f"your own setting ({own.plan}) did not run: {own.outcome.status.value}, {own.outcome.reason}; "
                "so there is no gain to report"
            )
        elif failed := self._failed_in_race(own):
            self._caveats.append(f"your own setting {failed}; the gain is to its blocks or probe before that")
        elif winner is not own and gain.pairs == 0:
            why = (
                "no plan that raced could be proven" if self._scale.decided_by_race else "there was no time for a race"
            )
            within = " and is within their noise" if gain.low <= 1 else ""
            self._caveats.append(f"{why}: the gain rests on two separate probes{within}")
        elif gain.low <= 1 < gain.value:
            self._caveats.append(f"the gain over your own setting, {gain}, is the best guess, but within the noise")
        leaks = [t.outcome.leaked for t in self._loop.trials if t.outcome.leaked and not t.earlier]
        if len(leaks) > 1:  # once is a table that is made and kept
            self._caveats.append(f"{len(leaks)} runs left memory behind, which a training would too: {leaks[-1]}")
        unknown = sum(measurement_of(t).startup_s is None for t in self._measured)
        if self._objective.planned_samples is not None and unknown:
            self._caveats.append(
                f"{unknown} of {len(self._measured)} plans are charged nothing for their start: it is not known what "
                "their first steps take longer, since an earlier version measured them. A new study measures them again"
            )
        if self._loop.early:
            self._caveats.append(f"the search was cut short: {self._loop.stopped}")
