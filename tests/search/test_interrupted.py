"""An interrupted search carries its answer, and is an interrupt to all who do not know of it."""

import pytest

from autofit.core.budget import Clock
from autofit.search.request import Request
from autofit.search.search import SearchInterrupted, search
from tests.fakes import briefing_of, opened, small_bench


@pytest.mark.parametrize("runs", [1, 4, 10])
def test_an_interrupted_search_carries_its_answer(runs: int) -> None:
    bench = small_bench()

    def evaluate(*asked: object) -> object:
        if len(bench.runs) == runs:
            raise KeyboardInterrupt
        return bench.evaluate(*asked)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt) as caught:
        search(opened(briefing_of(bench), evaluate), Request(study=":memory:"), (), Clock(bench.time))  # type: ignore[arg-type]
    assert isinstance(caught.value, SearchInterrupted)
    found = caught.value.answer
    assert found.plan in {plan for plan, _ in bench.runs}
    assert any("interrupted" in caveat for caveat in found.caveats)
    assert caught.value.fit is None
