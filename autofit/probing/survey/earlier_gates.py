"""Earlier gates: verdicts that a study keeps, which spare the gates of a workload that has not changed since."""

from collections.abc import Mapping, Sequence

from autofit.core.environment import Environment
from autofit.core.gate_verdict import GateVerdict, GateVerdicts
from autofit.identity.identity import Reached, digest


class EarlierGates:
    """The verdicts that apply to a workload.

    Args:
        kept: verdicts of earlier searches, of this workload and of others; the newest last.
        environment: the environment of the workload before any of its code has run.

    Attributes:
        found: verdict by technique.
    """

    def __init__(self, kept: Sequence[GateVerdicts], environment: Environment) -> None:
        self._key = digest([environment.model_dump_json()])
        self.found: dict[str, GateVerdict] = {}
        for each in kept:
            if each.environment == self._key:
                self.found |= each.found

    def to_keep(self, verdicts: Mapping[str, GateVerdict], looks: Sequence[Reached]) -> GateVerdicts | None:
        """Returns what a study should keep; None if there is nothing new, or if later searches need the gates to run.

        Args:
            verdicts: verdict of each gate of this search.
            looks: what the workload reached before any step, and after some. If steps change it, each search has to run
                steps before it can tell which of it belongs to the environment.
        """
        if verdicts.keys() <= self.found.keys() or any(look != looks[0] for look in looks):
            return None
        return GateVerdicts(environment=self._key, found=self.found | dict(verdicts))
