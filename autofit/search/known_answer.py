"""The answer of an earlier search: proven again, instead of searched for again, if nothing has changed since."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from autofit.core.briefing import Briefing
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.recommendation import Recommendation
from autofit.core.trial import Purpose, Trial
from autofit.search.evidence import CLOSED, SearchEvidence, evidence_in
from autofit.search.explanations import loading_caveats
from autofit.search.trial_runner import TrialRunner
from autofit.search.tuning import Tuning

ANSWER = "answer"
"""Name of the note on a study whose search ended because nothing was left that was worth a probe."""

AVAILABLE_RATIO = 0.05
"""Difference in available memory, as a share of it, up to which an answer is used again. Other processes of the machine
change it from call to call: by 0.5 to 2 % on an idle host."""


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The answer of an earlier search of the same question.

    Attributes:
        recommendation: the answer, with its alternatives.
        evidence: the evidence for it.
    """

    recommendation: Recommendation
    evidence: SearchEvidence

    @classmethod
    def of(cls, notes: Mapping[str, object], question: str, briefing: Briefing, trials: Sequence[Trial]) -> Self | None:
        """Returns the answer that the notes of a study hold; None if its question or its environment was another.

        Args:
            notes: the notes on the study.
            question: what is asked now (`question_of`).
            briefing: the environment and the budget now. A budget that was not requested is the same if it differs by
                at most `AVAILABLE_RATIO`.
            trials: the earlier trials that are valid now. Without one of the plan, the answer is not used: the study
                has dropped it, or its outcome under the present budget is not known.
        """
        note = notes.get(ANSWER)
        if not isinstance(note, dict) or note.get("question") != question:
            return None
        evidence = evidence_in(notes, CLOSED)
        if evidence is None or note != answer_note(question, evidence.began):
            return None
        found = evidence.answer(trials)
        if found is None or not evidence.environment.comparable(briefing.environment):
            return None
        if abs(briefing.budget.memory_bytes / evidence.budget.memory_bytes - 1) > AVAILABLE_RATIO:
            return None
        return cls(found, evidence) if any(t.plan == found.plan and t.outcome.measured for t in trials) else None

    def proven_again(self, tuning: Tuning) -> Measurement | None:
        """Proves the plan; returns the proof, or None if it failed or contradicts the earlier trials."""
        plan, runner = self.recommendation.plan, TrialRunner(tuning)
        runner.phase = "proof"
        runner.say("stage", f"this was asked in a search of {self._day}: its answer is proven again")
        runner.say_running(plan, self.recommendation.estimate)
        trial = runner.attempt(plan, Purpose.PROOF)
        runner.say_finished("proof", trial)
        if not trial.outcome.measured or all(t.plan != plan for t in runner.earlier.trials):  # they were contradicted
            return None
        tuning.seen.trials = (*runner.earlier.trials, *runner.trials)
        return trial.outcome.measurement

    def renewed(self, proof: Measurement, duration_s: float, caveats: Sequence[str]) -> Recommendation:
        """Returns the answer with its new proof, its own caveats, and `caveats` from before the proof."""
        before, now = (list(loading_caveats(each)) for each in (self.recommendation.proof, proof))
        earlier = [text for text in self.recommendation.caveats if not text.startswith(_BEGINNING)]
        kept = [new for text in earlier for new in (now if text in before else [text])]
        note = (
            f"{_BEGINNING} a search of {self._day} in this study; only its proof was run again. To search again, name "
            "another study, or ':memory:'"
        )
        changes = {
            "proof": proof,
            "caveats": tuple(dict.fromkeys([*kept, *now, note, *caveats])),
            "counts": {"measured": 1},
            "duration_s": round(duration_s, 2),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return self.recommendation.model_copy(update=changes)

    @property
    def _day(self) -> str:
        return self.evidence.began[:10]


_BEGINNING = "the plan, its gain and the alternatives are those of"


def question_of(briefing: Briefing, objective: Objective, searcher: str | None) -> str:
    """Returns a digest of what decides the answer beside the environment: space, memory budget and objective.

    The reasons of refusals are left out, since those of gates have measured values, and so is what only estimates of
    memory read of a knob.
    """
    facts = briefing.space
    estimates_only = {"__all__": {"same_memory", "trades_memory", "frees_bytes"}}
    space = facts.model_dump(
        mode="json", exclude={"refused": True, "batch_limit": True, "strategies": True, "knobs": estimates_only}
    )
    refused = sorted(refusal.name for refusal in facts.refused)
    memory_bytes = briefing.budget.memory_bytes if briefing.budget.requested else None
    asked = [space, refused, memory_bytes, objective.model_dump(mode="json"), searcher]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def answer_note(question: str, began: str) -> dict[str, object]:
    """Returns the note that the evidence of the search that `began` at this time answers a question."""
    return {"question": question, "began": began}
