"""One member of each family as another package would bring it; `tests/test_plugins.py` installs them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from autofit.core.answer import Answer
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.devices.base import Device
from autofit.devices.cpu import Cpu
from autofit.doctor.diagnosis import Finding
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.estimators.base import Estimator
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import Settings
from autofit.searchers.base import Problem, Searcher
from autofit.strategies.base import Facts, Offer, Phase, Strategy
from autofit.trackers.base import Conclusion, Ending, Tracker, Value
from autofit.workloads.step import Draft

APPLIED: list[str] = []
TOLD: list[Plan] = []
TRACKED: list[str] = []


class Marking(Strategy):
    """Notes the values that it is applied with."""

    name, phase, owns = "marking", Phase.MODULES, {"mark": None}

    def offer(self, facts: Facts) -> Offer:
        return Offer(knobs=(Knob(name="mark", values=("off", "on"), default="off"),))

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        APPLIED.append(str(plan.values.get("mark", "")))
        yield


class FirstTwo(Searcher):
    """Proposes the user's own plan, and the same with the mark."""

    name = "first-two"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        own = problem.space.baseline
        self._left = [own, own.replace(mark="on")]

    def ask(self) -> Plan | None:
        return self._left[0] if self._left else None

    def tell(self, trial: Trial) -> None:
        self._left = [plan for plan in self._left if plan != trial.plan]


class Words(Exporter):
    """Writes the values of a plan as words."""

    name, filename = "words", "plan.txt"

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        return {knob: {knob: value} for knob, value in answer.plan.values.items()}

    def render(self, settings: Settings, answer: Answer) -> str:
        return "".join(f"{key} is {value}\n" for key, value in settings.items())


class Silent(Estimator):
    """Has no opinion, and notes what it is told."""

    def tell(self, trial: Trial) -> None:
        TOLD.append(trial.plan)

    def estimate(self, plan: Plan) -> Estimate | None:
        return None


class Twin(Cpu):
    """The CPU under another name."""

    type = "twin"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")


class Notebook(Tracker):
    """Notes what is logged."""

    name, place = "notebook", "PAGE"

    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        TRACKED.append(f"open {self.where}")

    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        TRACKED.append("log")

    def conclude(self, conclusion: Conclusion) -> None:
        TRACKED.append(f"conclude {sorted(conclusion.documents)}")

    def close(self, ending: Ending) -> None:
        TRACKED.append(f"close {ending}")


class Watched(Detector):
    """Says how many steps it has seen."""

    id, about = "watched", "the number of steps"

    def find(self, observation: Observation) -> Iterator[Finding]:
        steps = len(observation.watch.levels)
        yield Finding(id=self.id, what=f"{steps} steps were watched", remedy="change nothing")


class Unfinished(Searcher):
    """Cannot be made: it proposes nothing."""

    name = "unfinished"


class Impostor(FirstTwo):
    """Has the name of one of autofit's own."""

    name = "guided"


NO_CLASS = FirstTwo.name
FAMILIES: dict[str, type[Strategy | Searcher | Exporter | Estimator | Device | Tracker | Detector]] = {
    "strategies": Marking,
    "searchers": FirstTwo,
    "exporters": Words,
    "estimators": Silent,
    "devices": Twin,
    "trackers": Notebook,
    "findings": Watched,
}
