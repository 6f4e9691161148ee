"""SearchInterrupted: Ctrl-C or SIGTERM in a search that has an answer."""

from autofit.core.recommendation import Recommendation


class SearchInterrupted(KeyboardInterrupt):
    """The user stopped a search that has an answer.

    Attributes:
        recommendation: the answer.
        fit: the same as a `Fit`, if the search was started by `autofit.tune`; else None.
    """

    def __init__(self, recommendation: Recommendation) -> None:
        super().__init__(recommendation.stopped)
        self.recommendation = recommendation
        self.fit: object | None = None
