"""Optuna's samplers and a grid as searchers, for users who ask for them and as a reference for `guided`.

A sampler works in its own Optuna study, in memory, over one flat space. It receives every trial of the durable study in
the same form (`study/optuna_terms.py`), except that every trial is complete: samplers ignore failed trials, and
would suggest their plans again.
"""

import random
from abc import abstractmethod

from autofit.core.errors import UsageError
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import install_command
from autofit.searchers.base import Problem, Searcher
from autofit.study import optuna, quiet
from autofit.study.optuna_terms import OptunaResult, optuna_result

PATIENCE = 15
"""Number of trials in a row without a gain beyond the tie margin after which a sampler counts as converged."""
STARTUP = 5
"""Number of random trials before `tpe` and `gp` use their model. A search has a few dozen trials, so more are wasted
(reference/ecosystem.md 3.4)."""
ATTEMPTS = 50
"""Number of suggestions in a row that are forbidden or already known after which the search ends."""
SKIPPED = OptunaResult(optuna.trial.TrialState.COMPLETE, 0.0, {"memory": 0.5, "valid": -1.0})
FORBIDDEN = OptunaResult(optuna.trial.TrialState.COMPLETE, 0.0, {"memory": 0.0, "valid": 1.0})
"""Results of a skipped plan and of a forbidden one. Every trial has the same two constraints in the same order, because
GPSampler identifies them by position."""


class Sampled(Searcher):
    """Proposes the baseline first, then the suggestions of an Optuna sampler."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._domains: dict[str, tuple[KnobValue, ...]] = {MICRO_BATCH_SIZE: tuple(sorted(problem.space.sizes))}
        self._domains |= {knob.name: knob.values for knob in problem.space.facts.knobs}
        self._distributions = {name: _distribution(values) for name, values in self._domains.items()}
        self._pending: dict[str, optuna.Trial] = {}
        self._results: dict[str, OptunaResult] = {}
        self._best, self._since = 0.0, 0
        with quiet():
            self._study = optuna.create_study(direction="maximize", sampler=self._sampler(problem.seed))

    @abstractmethod
    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """Returns the sampler. Raises UsageError if it needs a package that is not installed."""

    def ask(self) -> Plan | None:
        """Returns the baseline, then suggestions, until there was no gain for `PATIENCE` trials."""
        if self.problem.space.baseline.key not in self._results:
            return self.problem.space.baseline
        if self._since >= PATIENCE:
            return None
        with quiet():
            for _ in range(ATTEMPTS):
                asked = self._study.ask(self._distributions)
                plan = self._plan(asked.params)
                if self.problem.space.violation(plan) is not None:
                    self._settle(asked, FORBIDDEN)
                elif plan.key in self._results:
                    self._settle(asked, self._results[plan.key])
                else:
                    self._pending[plan.key] = asked
                    return plan
        return None

    def tell(self, trial: Trial) -> None:
        """Tells the sampler the result of a plan; ignores blocks of a race."""
        plan, outcome = trial.plan, trial.outcome
        if trial.purpose is Purpose.BLOCK or self.problem.space.violation(plan) is not None:
            return
        result = optuna_result(outcome, self.problem.objective, self.problem.memory_bytes)
        if result.state is not optuna.trial.TrialState.COMPLETE:
            result = SKIPPED if result.state is optuna.trial.TrialState.PRUNED else FORBIDDEN
        self._since += plan.key not in self._results
        self._results[plan.key] = result
        if outcome.measured and (result.value or 0.0) > self._best * (1 + self.problem.objective.tie_ratio):
            self._best, self._since = result.value or 0.0, 0
        asked, params = self._pending.pop(plan.key, None), self._params(plan)
        with quiet():
            if asked is not None:
                self._settle(asked, result)
            elif params is not None:
                self._study.add_trial(
                    optuna.trial.create_trial(
                        value=result.value,
                        params=params,
                        distributions=self._distributions,
                        constraints=result.constraints,
                    )
                )

    def _settle(self, asked: optuna.Trial, result: OptunaResult) -> None:
        for name, violation in result.constraints.items():
            asked.set_constraint(name, violation)
        self._study.tell(asked, result.value)

    def _plan(self, params: dict[str, int]) -> Plan:
        values = {name: self._domains[name][place] for name, place in params.items()}
        size, combination = int(values.pop(MICRO_BATCH_SIZE)), Plan(values=values)
        baseline = self.problem.space.baseline
        if combination == baseline.combination and size == baseline.micro_batch_size:
            return baseline
        return self.problem.space.at(combination, size)

    def _params(self, plan: Plan) -> dict[str, int] | None:
        """Returns the index of each value in its domain; None for a baseline whose size no other plan has."""
        params = {}
        for name, values in self._domains.items():
            mine = plan.values[name]
            places = [place for place, value in enumerate(values) if same_value(value, mine)]
            if not places:
                return None
            params[name] = places[0]
        return params


class Tpe(Sampled):
    """Tree-structured Parzen estimators."""

    name = "tpe"

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)


class Gp(Sampled):
    """A Gaussian process with expected improvement. Needs the extra `gp` (scipy); its first suggestion loads torch."""

    name = "gp"

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        try:
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)
        except ImportError as error:
            raise UsageError(
                f"the searcher 'gp' needs a package that is not installed: {error}. Expected scipy: "
                f"{install_command('gp')}; or choose the searcher 'tpe', which needs no other package."
            ) from None


class Random(Sampled):
    """Random plans."""

    name = "random"

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return optuna.samplers.RandomSampler(seed=seed)


def _distribution(values: tuple[KnobValue, ...]) -> optuna.distributions.BaseDistribution:
    """Returns the domain as a range of indices: ordered for numbers, categorical for choices."""
    if all(type(value) is int for value in values):
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    return optuna.distributions.CategoricalDistribution(range(len(values)))


class Grid(Searcher):
    """Proposes the baseline first, then every other plan in an order that the seed decides."""

    name = "grid"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._plans = problem.feasibility.plans
        others = list(range(1, len(self._plans.plans)))
        random.Random(problem.seed).shuffle(others)
        self._left = dict.fromkeys((0, *others))  # places, in the order in which they are proposed

    def ask(self) -> Plan | None:
        """Returns the next plan without a trial; None if there is none."""
        place = next(iter(self._left), None)
        return None if place is None else self._plans.plans[place]

    def tell(self, trial: Trial) -> None:
        """Removes a plan from the list; ignores blocks of a race."""
        place = self._plans.place(trial.plan)
        if trial.purpose is not Purpose.BLOCK and place is not None:
            self._left.pop(place, None)
