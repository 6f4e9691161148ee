"""Explanations: why each plan was not chosen, and the caveats of the result, also on the loader of the data."""

import math
from collections.abc import Iterator, Mapping, Sequence

from autofit.core.answer import Ratio
from autofit.core.loading import Loading
from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.core.units import format_bytes, format_duration, short_number
from autofit.search.choice import keeps_batch, lighter, measurement_of, ties
from autofit.search.common_scale import CommonScale
from autofit.search.evidence import BLOCK_CUT_OFF, BLOCK_FAILED
from autofit.search.loop import SearchEnd
from autofit.search.race import MIN_ROUNDS, Race
from autofit.search.trial_runner import TrialRunner
from autofit.terminal import cut_middle

OF_RECOMMENDED = "of the recommended plan's throughput"
NOT_RUN = (Status.SKIPPED, Status.INTERRUPTED)
_REASON = 120
"""Maximum length of the reason of a failed run in `Explanations.untried`, which becomes part of a headline."""


class Explanations:
    """Caveats about the race and the gain, and the reasons why plans were not chosen.

    `measured` are the latest trials of the plans that were measured, fastest first. `unproven` has a note on each plan
    that was the choice and is not proven and checked, by its key. `doubt` says how the proof of the winner contradicts
    the throughput that is shown for it; "" if it does not.
    """

    def __init__(
        self,
        runner: TrialRunner,
        measured: Sequence[Trial],
        baseline: Trial,
        scale: CommonScale,
        unproven: Mapping[str, str],
        doubt: str = "",
    ) -> None:
        self._runner, self._measured, self._baseline = runner, measured, baseline
        self._scale, self._unproven, self._doubt = scale, unproven, doubt
        self._objective = runner.tuning.objective

    def caveats(self, winner: Trial, end: SearchEnd) -> list[str]:
        """Returns the caveats, except those of the proof."""
        found = [*self._on_race(), *self._on_gain(winner), *self._on_runs(winner)]
        return [*found, f"the search was cut short: {end.stopped}"] if end.early else found

    def faults(self, plan: Plan) -> Iterator[str]:
        """Yields what the runs of a plan show of the user's own code. It harms the training under any plan."""
        runs = [m for t in self._runner.trials if t.plan == plan and (m := t.outcome.measurement)]
        most = max(runs, key=lambda run: run.growth_bytes, default=None)
        if most is not None and most.growth_bytes:
            free = max(self._runner.tuning.budget.memory_bytes - most.memory.judged_bytes, 0)
            steps = most.worst_steps + free // most.growth_bytes
            yield (
                f"live memory grew by {format_bytes(most.growth_bytes)} with each step on the worst batch. At this "
                f"pace, training exceeds the budget after about {steps:,} steps. Look for tensors that are kept from "
                "step to step: in a list, on the model, by a hook, or a loss with its graph"
            )
        if found := next((run.straggler for run in reversed(runs) if run.straggler), ""):
            yield f"{found}, and every step waits for it. See what else runs on its device and its machine"
        # A plan may use up its gradients before they can be looked at.
        runs += [m for t in self._runner.trials if t.plan == self._runner.baseline and (m := t.outcome.measurement)]
        seen = (run.without_gradient for run in reversed(runs) if run.proven and run.without_gradient)
        if found := next(seen, ""):
            yield (
                f"{found}, so these steps do not train them. If they should, look for detach(), no_grad() or "
                "reentrant checkpointing on the way from them to the loss; otherwise freeze them"
            )

    def why_not(self, trial: Trial, winner: Trial) -> str:
        """Returns why a measured plan was not chosen."""
        failed = failed_in_race(self._scale.race, trial)
        if failed or trial.plan.key in self._unproven:
            return failed or self._unproven[trial.plan.key]
        ratio, scale = self._scale.claim(trial, winner), self._scale
        if self.is_unknown(ratio):
            return "not compared: the proof of the recommended plan contradicts its probe"
        speed = f"{ratio} {OF_RECOMMENDED}"
        if ratio.pairs:
            speed = f"{speed}, in {ratio.pairs} paired blocks"
        elif scale.decided_by_race:
            return f"not raced; by its probe {speed}"
        else:
            speed = f"{speed}, by separate probes"
        if keeps_batch(winner.plan, self._baseline.plan) and not keeps_batch(trial.plan, self._baseline.plan):
            return f"not faster beyond the noise, and changes the batch: {speed}" if ratio.value > 1 else speed
        tied = ties(scale.ratio(winner, trial), self._objective.tie_ratio)
        if not tied:
            return speed
        decider = _decider(trial, winner, self._baseline.plan)
        # A plan may seem faster now: the winner was ahead when it was chosen, or the other was not proven.
        by = "" if decider == "speed" and ratio.value > 1 else f", decided by {decider}"
        return f"a tie{by}: {speed}"

    def is_unknown(self, over_winner: Ratio) -> bool:
        """Returns whether a ratio to the winner rests on a probe of it that its proof contradicts."""
        return bool(self._doubt) and not over_winner.pairs

    def untried(self, winner: Trial, end: SearchEnd, searched_s: float) -> str:
        """Returns why only the baseline was measured, and what a longer search needs; "" if another plan was measured.

        `searched_s` is the duration of the search phase in seconds.
        """
        if winner is not self._baseline or len(self._measured) > 1:
            return ""
        ran = [t for t in self._runner.trials if t.plan != winner.plan and t.outcome.status not in NOT_RUN]
        if ran:
            plan, *more = {t.plan for t in ran}
            which = "No other plan ran" if more else f"{self._runner.named(plan)} was tried"
            outcome = ran[-1].outcome
            return f"{which}: {outcome.status.value}, {cut_middle(outcome.reason, _REASON)}".rstrip(".")
        facts = self._runner.tuning.space.facts
        if not end.early and (facts.knobs or len(facts.sizes) > 1):
            return "No other plan is likely to fit and be faster"
        if not end.early:
            refused = ", ".join(refusal.name for refusal in facts.refused if refusal.origin == "gate")
            return f"There is no other plan{f': checks of the gradient refused {refused}' if refused else ''}"
        next_one = "" if end.wanted is None else f"; {self._runner.named(end.wanted)} was next"
        most = self._runner.tuning.budget.max_trials
        if most is not None and self._runner.probes >= most:
            return f"No other plan was tried: {end.stopped}{next_one}. Allow more trials"
        ledger, spent_s = self._runner.ledger, searched_s - self._runner.tuning.clock.waited_s
        probe_s = max(ledger.probe_s(), end.wanted_s or 0.0)
        needed_s = spent_s + probe_s + ledger.proof_s(measurement_of(winner)) + ledger.check_s()
        return (
            f"No other plan was tried: {end.stopped}{next_one}. A probe takes {format_duration(probe_s)} here: "
            f"give at least {format_duration(needed_s)}"
        )

    def _on_race(self) -> Iterator[str]:
        race = self._scale.race
        if race is None or race.decided or not race.rounds:
            return
        if self._scale.decided_by_race:
            close = len(race.contenders)
            yield f"the race ended after {race.rounds} rounds, undecided among {close} plans: they are close"
        else:
            done = f"the race needs at least {MIN_ROUNDS} rounds and had time for {race.rounds}"
            yield f"{done}: all figures are those of separate probes"

    def _on_gain(self, winner: Trial) -> Iterator[str]:
        baseline = self._baseline
        if not baseline.outcome.measured:
            status, reason = baseline.outcome.status, baseline.outcome.reason
            ends = {Status.SKIPPED: "was not run", Status.OVER_BUDGET: "exceeds the budget"}
            end = ends.get(status, f"did not run: {status.value}")
            yield f"the baseline ({self._runner.named(baseline.plan)}) {end}: {reason}; so there is no gain to report"
            return
        gain = self._scale.claim(winner, baseline)
        if failed := failed_in_race(self._scale.race, baseline):
            yield f"the baseline {failed}; the gain is relative to its blocks or probe before that"
        elif winner is not baseline and gain.pairs == 0 and not self._doubt:
            why = (
                "no plan that raced could be proven" if self._scale.decided_by_race else "there was no time for a race"
            )
            within = " and is within their noise" if gain.low <= 1 <= gain.high else ""
            yield f"{why}: the gain rests on two separate probes{within}"
        elif gain.low <= 1 < gain.value and not self.is_unknown(gain):
            yield f"the gain over the baseline, {gain}, is within the noise"

    def _on_runs(self, winner: Trial) -> Iterator[str]:
        proofs = [m for t in self._runner.trials if t.plan == winner.plan and (m := t.outcome.measurement)]
        exchange = max((m.exchange_s / m.step_time_s for m in proofs if m.exchange_s is not None), default=0.0)
        if exchange >= _FELT_RATIO:
            yield (
                f"communication between ranks, and waiting for each other, takes {exchange:.0%} of a step. A larger "
                "global_batch_size needs it less often"
            )
        most = max(self._measured, key=_new_shape_share)
        share, recommended = _new_shape_share(most), _new_shape_share(winner)
        if share > 0:
            yield (
                f"batches have many shapes, and kernels for a new one take up to {share:.0%} of a step "
                f"({self._runner.named(most.plan)}), {recommended:.0%} with the recommended plan: counted in full, as "
                "if each batch had a new shape"
            )
        leaks = [t.outcome.leaked for t in self._runner.trials if t.outcome.leaked and not t.earlier]
        if len(leaks) > 1:  # a single one is a table that is made once and kept
            yield f"{len(leaks)} runs left memory behind, and so would training: {leaks[-1]}"


def failed_in_race(race: Race | None, trial: Trial) -> str:
    """Returns why a block of a plan was not completed in the race; "" if all were."""
    reason = race.left.get(trial.plan.key, "") if race is not None else ""
    return reason if reason.startswith((BLOCK_FAILED, BLOCK_CUT_OFF)) else ""


def _new_shape_share(trial: Trial) -> float:
    """Returns the share of a step that kernels for new shapes take."""
    return measurement_of(trial).new_shape_s / measurement_of(trial).step_time_s


def _decider(trial: Trial, winner: Trial, baseline: Plan) -> str:
    """Returns the criterion that decided between two tied plans, see `autofit.search.choice.lightest`."""
    ours, theirs = (measurement_of(t).memory.judged_bytes for t in (winner, trial))
    if trial.plan.global_batch_size != winner.plan.global_batch_size:
        return "the batch"
    if lighter(ours, theirs):
        return "memory"
    ours, theirs = (len(t.plan.changes_from(baseline)) for t in (winner, trial))
    return "fewer changes" if ours < theirs else "speed"


_FELT_RATIO = 0.1
"""Smallest share of a step's time that is worth a caveat, if loading takes it in the training's process."""


def loading_caveats(proof: Measurement) -> Iterator[str]:
    """Yields the caveat about the loader of a proven plan, if there is one."""
    fetch_s, step_s, loading = proof.fetch_s, proof.step_time_s, proof.loading
    if loading is not None and not loading.kept:
        yield _chosen(loading)
    elif fetch_s is not None and fetch_s > step_s * ((loading.workers if loading is not None else 0) or _FELT_RATIO):
        took = f"loading the samples of one step took {format_duration(fetch_s)}, and its training"
        took = f"{took} {format_duration(step_s)}"
        if loading is not None:
            yield f"{took}: the loader keeps its settings, since {loading.kept}"
        else:
            workers = _workers(math.ceil(fetch_s / step_s))
            yield f"{took}: give the loader about {workers}, or it will limit training"


def _chosen(loading: Loading) -> str:
    """Returns the numbers of a loader whose settings were chosen."""
    needed, rate = short_number(loading.needed_per_s), short_number(loading.samples_per_s or 0.0)
    alone = short_number(loading.trials[0].samples_per_s or 0.0)
    if not loading.workers:
        return (
            f"the loader needs no worker processes: it makes {alone} samples/s, and the step could take {needed}. "
            "fit.prepare builds it so"
        )
    if (loading.samples_per_s or 0.0) >= loading.needed_per_s:
        return (
            f"the loader keeps up with {_workers(loading.workers)}: it yields {rate} samples/s (without them {alone}), "
            f"and the step could take {needed}. fit.prepare builds it so"
        )
    last = loading.trials[-1]
    further = last.reason or f"{short_number(last.samples_per_s or 0.0)} samples/s"
    more = f" ({_workers(last.workers)}: {further})" if last.workers != loading.workers else ""
    workers = f"{_workers(loading.workers)}{more}"
    return (
        f"data-bound: the loader yields {rate} samples/s with {workers}, and the step could take {needed}. "
        "fit.prepare builds it so; make loading a sample cheaper to train faster"
    )


def _workers(count: int) -> str:
    return f"{count} worker process{'' if count == 1 else 'es'}"
