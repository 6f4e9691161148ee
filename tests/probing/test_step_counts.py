"""How many steps a probe, a block and a proof take: the promises that other rules rest on."""

from autofit.core.trial import Purpose
from autofit.probing.timing import PACES, PATIENCE_SHARE


def test_every_purpose_has_a_pace_that_can_be_kept() -> None:
    assert set(PACES) == set(Purpose)
    for pace in PACES.values():
        assert pace.warmup_most >= 1
        assert 1 <= pace.steps_least <= pace.steps_most
        assert 0 <= pace.seconds <= pace.patience_s


def test_all_blocks_of_a_race_measure_the_same_number_of_steps() -> None:
    block = PACES[Purpose.BLOCK]
    assert (block.warmup_most, block.steps_least) == (1, block.steps_most)


def test_a_probe_and_a_proof_measure_no_less_than_the_least_for_a_median() -> None:
    assert all(PACES[purpose].steps_least >= 3 for purpose in (Purpose.PROBE, Purpose.PROOF))


def test_warming_up_and_timing_leave_half_of_what_is_left() -> None:
    assert 2 * PATIENCE_SHARE <= 0.5
