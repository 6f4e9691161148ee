"""Checks: whether plans keep the baseline's gradient, compared once and only for a plan that may become the answer."""

from collections.abc import Mapping
from contextlib import suppress

from pydantic import ValidationError

from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.core.strict import Strict
from autofit.gates.verdict import ACCUMULATION, Checked, GateVerdict, at_fault, values_to_check
from autofit.search.ledger import Ledger
from autofit.search.tuning import Tuning

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
        tuning.seen.verdicts, tuning.seen.refused = self.known, self.refused
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
