"""Sampled: Optuna's samplers as searchers, for users who ask for them and as a yardstick for `guided`.

A sampler works in an Optuna study of its own, in memory, over one flat space. It hears of every trial of the durable
study in the words in which that one keeps them (`study/optuna_names.py`), except that here every trial is complete:
samplers forget what failed, and would suggest it again.
"""

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from autofit.core.errors import UsageError
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.trial import Purpose, Trial
from autofit.searchers.base import Problem, Searcher
from autofit.study.optuna_names import OptunaResult, optuna_result

PATIENCE = 15
"""Trials in a row without a gain beyond the tie margin after which a sampler is taken to have converged."""
STARTUP = 5
"""Random trials before the model of `tpe` and `gp`: of a few dozen trials in all, more are wasted
(reference/ecosystem.md 3.4)."""
ATTEMPTS = 50
"""Suggestions in a row that are forbidden, or known already, after which there is nothing new."""
SKIPPED = OptunaResult(TrialState.COMPLETE, 0.0, {"memory": 0.5, "valid": -1.0})
FORBIDDEN = OptunaResult(TrialState.COMPLETE, 0.0, {"memory": 0.0, "valid": 1.0})
"""Constraints are the same two of every trial, in the same order: GPSampler goes by their position."""


class Sampled(Searcher):
    """Proposes the user's own plan first, then what a sampler of Optuna suggests."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._domains: dict[str, tuple[KnobValue, ...]] = {MICRO_BATCH_SIZE: tuple(sorted(problem.space.sizes))}
        self._domains |= {knob.name: knob.values for knob in problem.space.facts.knobs}
        self._distributions = {name: _distribution(values) for name, values in self._domains.items()}
        self._pending: dict[str, optuna.Trial] = {}
        self._told: dict[str, OptunaResult] = {}
        self._best, self._since = 0.0, 0
        with _quiet():
            self._study = optuna.create_study(direction="maximize", sampler=self._sampler(problem.seed))

    @abstractmethod
    def _sampler(self, seed: int) -> BaseSampler:
        """Returns the sampler.

        Raises:
            UsageError: it needs a package that is not installed.
        """

    def ask(self) -> Plan | None:
        """Returns the user's own plan, then suggestions, until there was no gain for `PATIENCE` trials."""
        if self.problem.space.baseline.key not in self._told:
            return self.problem.space.baseline
        if self._since >= PATIENCE:
            return None
        with _quiet():
            for _ in range(ATTEMPTS):
                asked = self._study.ask(self._distributions)
                plan = self._plan(asked.params)
                if self.problem.space.violation(plan) is not None:
                    self._settle(asked, FORBIDDEN)
                elif plan.key in self._told:
                    self._settle(asked, self._told[plan.key])
                else:
                    self._pending[plan.key] = asked
                    return plan
        return None

    def tell(self, trial: Trial) -> None:
        """Tells the sampler what became of a plan; a block of a race says nothing of one."""
        plan, outcome = trial.plan, trial.outcome
        if trial.purpose is Purpose.BLOCK or self.problem.space.violation(plan) is not None:
            return
        told = optuna_result(outcome, self.problem.objective, self.problem.memory_bytes)
        if told.state is not TrialState.COMPLETE:
            told = SKIPPED if told.state is TrialState.PRUNED else FORBIDDEN
        self._since += plan.key not in self._told
        self._told[plan.key] = told
        if outcome.measured and (told.value or 0.0) > self._best * (1 + self.problem.objective.tie_ratio):
            self._best, self._since = told.value or 0.0, 0
        asked, params = self._pending.pop(plan.key, None), self._params(plan)
        with _quiet():
            if asked is not None:
                self._settle(asked, told)
            elif params is not None:
                self._study.add_trial(
                    create_trial(
                        value=told.value,
                        params=params,
                        distributions=self._distributions,
                        constraints=told.constraints,
                    )
                )

    def _settle(self, asked: optuna.Trial, told: OptunaResult) -> None:
        for name, violation in told.constraints.items():
            asked.set_constraint(name, violation)
        self._study.tell(asked, told.value)

    def _plan(self, params: dict[str, int]) -> Plan:
        values = {name: self._domains[name][place] for name, place in params.items()}
        size, combination = int(values.pop(MICRO_BATCH_SIZE)), Plan(values=values)
        baseline = self.problem.space.baseline
        if combination == baseline.combination and size == baseline.micro_batch_size:
            return baseline
        return self.problem.space.at(combination, size)

    def _params(self, plan: Plan) -> dict[str, int] | None:
        """Returns the place of each value in its domain; None for the user's own plan at a size of no other plan."""
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

    def _sampler(self, seed: int) -> BaseSampler:
        return TPESampler(seed=seed, n_startup_trials=STARTUP)


class Gp(Sampled):
    """A Gaussian process with expected improvement. Needs the extra `gp` (scipy); loads torch when it is asked."""

    name = "gp"

    def _sampler(self, seed: int) -> BaseSampler:
        try:
            return GPSampler(seed=seed, n_startup_trials=STARTUP)
        except ImportError as error:
            raise UsageError(
                f"the searcher 'gp' needs a package that is not installed: {error}. Expected scipy: "
                "pip install 'torch-autofit[gp]'; or choose the searcher 'tpe', which needs nothing more."
            ) from None


class Random(Sampled):
    """Plans at random."""

    name = "random"

    def _sampler(self, seed: int) -> BaseSampler:
        return RandomSampler(seed=seed)


def _distribution(values: tuple[KnobValue, ...]) -> BaseDistribution:
    """Returns the domain as places in it: of numbers in their order, of choices without one."""
    if all(type(value) is int for value in values):
        return IntDistribution(0, len(values) - 1)
    return CategoricalDistribution(range(len(values)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps Optuna's progress lines and its warnings of what is experimental out of the user's log."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
