"""Notes on admitted techniques: each says what was found and what to do."""

from autofit.probing.survey.gate_notes import accumulation_notes, precision_notes
from autofit.probing.survey.gate_result import GateResult
from autofit.workloads.micro_batch_weights import SUM


def test_a_precision_that_was_compared_as_the_model_trains_has_no_note() -> None:
    assert list(precision_notes("precision=bf16", GateResult(True, "close"))) == []
    assert list(precision_notes("precision=bf16", GateResult(False, "far", evaluated=True))) == []


def test_a_precision_that_was_compared_otherwise_says_so_and_what_to_do() -> None:
    (note,) = precision_notes("precision=bf16", GateResult(True, "the gradient cannot be compared", evaluated=True))
    assert note.startswith("precision=bf16: the gradient cannot be compared. Compare the first losses")


def test_accumulation_says_how_micro_batches_are_weighted_and_what_moves() -> None:
    verdict = GateResult(True, "alike", SUM, ("model.teacher",), evaluated=True)
    weighing, moving, evaluated = accumulation_notes(verdict, 4)
    assert "micro batches are added up, and so are the 4 micro batches of the baseline" in weighing
    assert "changes model.teacher by itself" in moving
    assert "evaluation mode" in evaluated
    assert list(accumulation_notes(GateResult(True, "alike"), 4)) == []
