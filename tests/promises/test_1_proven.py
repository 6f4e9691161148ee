"""Promise 1: the returned plan was itself run, exactly as returned, inside the budget."""

import pytest

from autofit.core.errors import NothingFits
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.search.search import run
from tests.fakes import always, during, small_bench, tuning_of
from tests.promises.conftest import Tuned


@pytest.mark.fault("F33", "F34")
def test_the_last_proof_is_of_the_returned_plan(tuned: Tuned) -> None:
    proofs = [event.trial for event in tuned.events if event.kind == "proof" and event.trial is not None]
    assert proofs[-1].plan == tuned.fit.plan
    assert proofs[-1].purpose is Purpose.PROOF
    assert proofs[-1].outcome.measurement == tuned.fit.proof


@pytest.mark.fault("F04")
def test_the_proof_has_three_steps_on_the_worst_batch_inside_the_budget(tuned: Tuned) -> None:
    proof = tuned.fit.proof
    assert len(proof.step_times_s) >= 3
    assert proof.worst_steps >= 3
    assert 0 < proof.memory.judged_bytes <= 256 * 2**20


def test_a_plan_whose_proof_fails_is_not_returned() -> None:
    first = run(tuning_of(small_bench())).plan
    bench = small_bench()
    bench.faults[first.key] = during(Purpose.PROOF, Status.OUT_OF_MEMORY)
    found = run(tuning_of(bench))
    assert first in bench.probes(Purpose.PROOF)
    assert found.plan != first
    assert bench.runs[-1] == (found.plan, Purpose.PROOF)
    assert any("its proof failed" in caveat for caveat in found.caveats)


def test_without_a_proof_there_is_no_answer() -> None:
    bench = small_bench()
    for combination in bench.space.combinations():
        for size in bench.space.sizes:
            bench.faults[bench.space.at(combination, size).key] = during(Purpose.PROOF, Status.OUT_OF_MEMORY)
    bench.faults[bench.space.baseline.key] = always(Status.OUT_OF_MEMORY)
    with pytest.raises(NothingFits):
        run(tuning_of(bench))
