"""What is said where the proof of a plan contradicts the throughput that is shown for it."""

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.common_scale import CommonScale


def measured(samples_per_s: float, warmup_steps: int = 1) -> Measurement:
    memory, times_s = Memory(allocated_bytes=1000, judged_bytes=1000, judged_by="test"), (40 / samples_per_s,) * 3
    return Measurement(step_times_s=times_s, warmup_times_s=times_s[:warmup_steps], samples_per_step=40, memory=memory)


@pytest.mark.parametrize(("proven", "doubted"), [(787.0, True), (1900.0, False), (2666.0, False), (4100.0, True)])
def test_a_proof_that_contradicts_the_figure_shown_is_reported(proven: float, doubted: bool) -> None:
    """Seen on a shared machine: a plan was shown with 2,666 samples/s whose proof ran at 787, without a word."""
    plan = Plan(values={"micro_batch_size": 40, "accumulation_steps": 1})
    trial = Trial(number=0, plan=plan, outcome=Outcome(status=Status.MEASURED, measurement=measured(2666.0)))
    doubt = CommonScale(Objective(), [trial]).doubt_of_proof(trial, measured(proven))
    assert bool(doubt) is doubted
    if doubted:
        assert f"{proven:,.0f} samples/s, but 2,666 are shown: probably something else used" in doubt
        assert "Tune again" in doubt
    on_worst_batch = measured(proven, warmup_steps=0)  # metered, and no other steps had time
    assert not CommonScale(Objective(), [trial]).doubt_of_proof(trial, on_worst_batch)
