"""Evidence: what a search knows beside its answer, kept with the trials so that a report can show it.

The study has two notes of it. "search" is written when a search begins: what was asked. "evidence" is written when it
ends. A search that was killed leaves the first alone.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.briefing import GateRecord
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.printable import ascii_json
from autofit.core.space import Omission, Refusal
from autofit.core.strict import Elapsed, Positive, Strict
from autofit.core.trial import Purpose, Trial
from autofit.memory.profile import Profile
from autofit.search.race import Race
from autofit.study.stored_trials import STORED_LETTERS

LEARNING_RATE_RULE = "common rules scale the rate with the batch, or with its square root"
"""What is usually done to the learning rate when the global batch changes."""
BATCH_CHANGED = "the global batch was free and changed"
"""Beginning of the caveat on a changed global batch, which reports show first."""
HELD = "held"
"""How the result of a long proof begins if nothing grew and no step failed."""
FOUND_BY_DOCTOR = "doctor: "
"""Beginning of the caveat on what the doctor found in the steps of the answer. It comes last."""
STOPPED_BY_USER = "it was interrupted"
"""Beginning of the reason why a search ended that the user stopped after there was an answer."""
PROOF_FAILED = "its proof failed"
"""Beginning of the note on a plan that was the choice until its proof failed."""
PROOF_CUT_OFF = "its proof was not completed"
"""Beginning of the note on a plan whose proof the end of its time cut off, which says nothing of the plan."""
BLOCK_FAILED, BLOCK_CUT_OFF = "failed in the race", "was cut off in the race"
"""Beginnings of the note on a plan that left the race without the result of a block."""
NOT_SETTLED = "it was the choice, but"
"""Beginning of the note on a plan that there was no time to prove or to check, or that did not pass its check."""

EVIDENCE_SCHEMA = "autofit.evidence/1"
OPENED, CLOSED = "search", "evidence"
"""Names of the notes of a study."""


class Placing(Strict):
    """How a measured plan compares with the others; the attributes are those of `Candidate`."""

    plan: Plan
    gain: Ratio | None = None
    rate_per_s: Positive | None = None
    over_recommended: Ratio | None = None
    note: str = ""
    on_front: bool = False


class Answered(Strict):
    """An answer of the search: a plan that was proven and checked, and faster than the one before.

    Attributes:
        at_s: seconds since the call began.
        plan: the plan.
        ratio: throughput over that of the baseline, by probes; None if the baseline was not measured, or the proof of
            the plan contradicts its probe.
    """

    at_s: Elapsed
    plan: Plan
    ratio: Positive | None = None


class RaceLog(Strict):
    """The blocks of one plan in the race.

    Attributes:
        joined: round in which it joined; 0 for the plans that began the race.
        log_rates: log throughput of each block, one per round from `joined` on.
        note: why it left the race, or "".
    """

    plan: Plan
    joined: int = 0
    log_rates: tuple[float, ...] = ()
    note: str = ""


class SearchEvidence(Strict):
    """What a search knows beside its answer. Attributes that are not listed here are those of `Answer`.

    Attributes:
        began: UTC time in ISO 8601 at which the search began.
        baseline: the user's own plan.
        gates: results of the gates.
        caveats: notes from before the first probe.
        stopped: why the search phase ended; "" if it has not ended.
        failure: why the search has no answer; "" if it has one, or has not ended.
        failure_code: exit code of the error with that message (`autofit.core.errors`); 0 without one.
        answer: the answer without its alternatives; None without one.
        standings: the measured plans beside the recommended one and the baseline, best first.
        estimates: estimated peak of each plan before it first ran, by the plan's key. Guesses without bounds are not
            kept.
        race: the plans of the race.
        omissions: combinations that were never measured.
        answers: each answer of the search, in the order in which they came.
        profile: memory of the recommended plan, or of the baseline if there is no answer; None if it was not
            traced.
        baseline_profile: memory of the baseline if it is not the recommended plan; None if it was not traced.
    """

    began: str
    title: str = ""
    command: str = ""
    baseline: Plan
    budget: Budget
    objective: Objective
    environment: Environment
    gates: tuple[GateRecord, ...] = ()
    refused: tuple[Refusal, ...] = ()
    caveats: tuple[str, ...] = ()
    stopped: str = ""
    failure: str = ""
    failure_code: int = 0
    answer: Answer | None = None
    standings: tuple[Placing, ...] = ()
    estimates: Mapping[str, Estimate] = {}
    race: tuple[RaceLog, ...] = ()
    omissions: tuple[Omission, ...] = ()
    answers: tuple[Answered, ...] = ()
    profile: Profile | None = None
    baseline_profile: Profile | None = None

    def supports(self, answer: Answer) -> bool:
        """Returns whether this is the evidence for `answer`, and not for that of another search."""
        found = self.answer
        return found is not None and (found.created, found.plan) == (answer.created, answer.plan)

    def whole_answer(self, trials: Sequence[Trial]) -> Answer | None:
        """Returns the answer with its alternatives, whose outcomes are in `trials`; None without one."""
        if self.answer is None:
            return None
        by_proof = sorted(trials, key=lambda t: t.purpose is Purpose.PROBE)  # alone if a plan was never probed
        probes = {t.plan.key: t.outcome for t in by_proof if t.outcome.measured}
        alternatives = (
            Candidate(outcome=probes[each.plan.key], **dict(each)) for each in self.standings if each.plan.key in probes
        )
        return self.answer.model_copy(update={"alternatives": tuple(alternatives)})


def race_logs(race: Race | None, trials: Iterable[Trial]) -> Iterator[RaceLog]:
    """Yields the blocks of each plan that raced, those that began the race first."""
    plans = {trial.plan.key: trial.plan for trial in trials}
    if race is None:
        return
    for name in race.names:
        logs, note = tuple(race.logs[name]), race.left.get(name, "")
        yield RaceLog(plan=plans[name], joined=race.joined.get(name, 0), log_rates=logs, note=note)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found, and the evidence for it.

    Attributes:
        answer: the answer; None if the search failed.
        evidence: what the search knows beside that.
        trials: every trial, those of earlier runs first; of the blocks of the race only those that failed.
    """

    answer: Answer | None
    evidence: SearchEvidence
    trials: tuple[Trial, ...] = ()


def notes_of(evidence: SearchEvidence, name: str) -> dict[str, dict[str, object]]:
    """Returns evidence as the notes of a study, by their names: `name`, and further ones if it is long."""
    document = json.loads(evidence.model_dump_json(by_alias=True, exclude_defaults=True))
    text = ascii_json(json.dumps(document))  # with spaces, at which optuna-dashboard can wrap it
    parts = [text[at : at + STORED_LETTERS] for at in range(0, len(text), STORED_LETTERS)]
    names = [name, *(f"{name}.{number}" for number in range(1, len(parts)))]
    head: dict[str, object] = {"schema": EVIDENCE_SCHEMA, "began": evidence.began, "parts": len(parts)}
    return {each: {**head, "text": part} for each, part in zip(names, parts, strict=True)}


def evidence_in(notes: Mapping[str, object], name: str) -> SearchEvidence | None:
    """Returns the evidence in the notes of a study; None if there is none that this version can read."""
    head = notes.get(name)
    if not isinstance(head, dict) or head.get("schema") != EVIDENCE_SCHEMA:
        return None
    if not isinstance(head.get("parts"), int) or head["parts"] > len(notes):  # each part is a note
        return None
    parts = [head, *(notes.get(f"{name}.{number}") for number in range(1, head["parts"]))]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("began") == head.get("began")]
    if len(texts) != head["parts"]:  # written in part only, or by two searches at once
        return None
    try:
        return SearchEvidence.model_validate_json("".join(map(str, texts)))
    except ValidationError:
        return None
