"""Promise 4: everything that was passed in is bit-identical afterwards, on every exit."""

import pytest

from tests.promises.conftest import Tuned


def test_a_search_leaves_no_trace(tuned: Tuned) -> None:
    before, after = tuned.digests
    assert before == after


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_search_that_is_cut_off_leaves_no_trace(untuned: Tuned, error: type[BaseException]) -> None:
    before = untuned.digest()

    def stop(event: object) -> None:
        untuned.events.append(event)  # type: ignore[arg-type]
        if sum(event.kind == "trial" for event in untuned.events) == 3:
            raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        untuned.tune(progress=stop)
    assert untuned.digest() == before


def test_a_listener_that_fails_neither_stops_a_search_nor_leaves_a_trace(untuned: Tuned) -> None:
    before = untuned.digest()

    def fail(event: object) -> None:
        raise RuntimeError("no such page")

    with pytest.warns(RuntimeWarning, match="fail failed and gets no further events: RuntimeError: no such page"):
        fit = untuned.tune(listeners=[fail])
    assert fit.proof.worst_steps >= 3
    assert untuned.digest() == before


def test_the_digest_sees_one_bit(untuned: Tuned) -> None:
    before = untuned.digest()
    weight = next(untuned.model.parameters())
    weight.data[0, 0] = -weight.data[0, 0]
    assert untuned.digest() != before
