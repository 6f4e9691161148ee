"""EvidenceRecorder: collects the evidence of one search, keeps it in the study, and hands it to the listeners."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from autofit.core.answer import Answer
from autofit.core.briefing import Briefing, GateRecord
from autofit.core.budget import Budget
from autofit.core.errors import AutofitError
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.wording import describe_plan
from autofit.estimators.base import Estimator
from autofit.memory.profile import Profile
from autofit.search.event import Event
from autofit.search.evidence import CLOSED, OPENED, Placing, SearchEvidence, SearchResult, Seen, notes_of
from autofit.search.request import Listen, Request

Note = Callable[[str, dict[str, object]], None]
"""Keeps a value beside the trials, under a name."""


class EvidenceRecorder:
    """Collects the evidence of one search. A failure here never costs the answer: the listener receives a message.

    Attributes:
        seen: filled by the search while it runs.
    """

    def __init__(self, asked: SearchEvidence, note: Note, estimators: Sequence[Estimator], listen: Listen) -> None:
        self._asked, self._note, self._estimators, self._listen = asked, note, estimators, listen
        self.seen, self._done = Seen(), 0
        self._keep(asked, OPENED)
        text = f"searching plans for {asked.title or 'the workload'}"
        self._listen(Event("start", text, asked=asked))

    def tell(self, event: Event) -> None:
        """Passes an event of the search on."""
        self._done = event.done
        self._listen(event)

    def show(self, plan: Plan) -> None:
        """Traces the recommended plan, unless the search did, for its profile and for advice on its memory."""
        with self._harmless(f"{self._named(plan)} was not traced for the report"):
            if self._profile(plan) is None:
                self._say(f"tracing {self._named(plan)} for the report")
                for estimator in self._estimators:
                    estimator.show(plan)

    @contextmanager
    def _harmless(self, what: str) -> Iterator[None]:
        """Reports an error inside: the answer matters more than what is shown with it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is
            self._say(f"{what}: {type(error).__name__}: {error}")

    def _named(self, plan: Plan) -> str:
        return describe_plan(plan, self._asked.baseline)

    def found(self, answer: Answer) -> None:
        """Keeps the evidence for an answer, and tells the listener both."""
        text = f"recommended: {self._named(answer.plan)}"
        self._listen(Event("result", text, done=self._done, result=self._result(answer, None)))

    def failed(self, error: AutofitError) -> None:
        """Keeps the evidence of a search that ends with an error, and tells the listener."""
        result = self._result(None, error)
        try:
            self._listen(Event("result", "no plan is recommended", done=self._done, result=result))
        except Exception as lesser:  # noqa: BLE001  # the caller raises the error that ended the search
            error.add_note(f"a listener failed too: {type(lesser).__name__}: {lesser}")

    def _result(self, answer: Answer | None, failed: AutofitError | None) -> SearchResult:
        ended = {} if failed is None else {"failure": str(failed), "failure_code": failed.exit_code}
        kept = None if answer is None else answer.model_copy(update={"alternatives": ()})
        evidence = self._asked.model_copy(update={**ended, "answer": kept})
        with self._harmless("the evidence for the report is incomplete"):
            evidence = self._evidence(answer, evidence)
        self._keep(evidence, CLOSED)
        return SearchResult(answer, evidence, tuple(self.seen.trials))

    def _evidence(self, answer: Answer | None, asked: SearchEvidence) -> SearchEvidence:
        seen, baseline, r = self.seen, self._asked.baseline, answer
        others = () if r is None else r.alternatives
        verdicts = seen.verdicts.items()
        return asked.model_copy(
            update={
                "stopped": seen.stopped,
                "gates": tuple(GateRecord(name=name, passed=v.passed, reason=v.reason) for name, v in verdicts),
                "refused": (*seen.refused, *asked.refused),
                "standings": tuple(Placing(**each.model_dump(exclude={"outcome"})) for each in others),
                "estimates": {key: estimate for key, estimate in seen.estimates.items() if estimate.is_bounded},
                "race": tuple(seen.race_logs()),
                "omissions": tuple(seen.omissions),
                "answers": tuple(seen.answers),
                "profile": self._profile(baseline if r is None else r.plan),
                "baseline_profile": None if r is None or r.plan == baseline else self._profile(baseline),
            }
        )

    def _profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace; None if it was not traced."""
        found = (estimator.profile(plan) for estimator in self._estimators)
        return next((profile for profile in found if profile is not None), None)

    def _keep(self, evidence: SearchEvidence, name: str) -> None:
        with self._harmless("the evidence for the report was not kept"):
            for part, value in notes_of(evidence, name).items():
                self._note(part, value)

    def _say(self, text: str) -> None:
        self._listen(Event("stage", text, done=self._done))


def asked(
    briefing: Briefing, budget: Budget, objective: Objective, request: Request, notes: Sequence[str]
) -> SearchEvidence:
    """Returns what a search is asked, as the evidence that there is when it begins."""
    return SearchEvidence(
        began=datetime.now(UTC).isoformat(),
        title=request.title,
        command=request.command,
        baseline=briefing.space.baseline,
        budget=budget,
        objective=objective,
        environment=briefing.environment,
        refused=briefing.space.refused,
        caveats=(*briefing.caveats, *notes),
    )
