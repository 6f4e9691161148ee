"""Notes on a plan that its check has admitted: each says what was found and what to do."""

from autofit.core.gate_verdict import GateVerdict
from autofit.probing.survey.gate_notes import notes


def test_what_was_compared_as_the_model_trains_has_no_note() -> None:
    assert list(notes({"precision=bf16": GateVerdict(passed=True, reason="close")}, 1)) == []


def test_values_that_were_compared_otherwise_share_one_note() -> None:
    verdict = GateVerdict(passed=True, reason="the gradient cannot be compared", evaluated=True)
    (note,) = notes({"precision=bf16": verdict, "compile=blocks": verdict}, 1)
    assert note.startswith("precision=bf16, compile=blocks: the gradient cannot be compared. Compare the first losses")


def test_what_was_not_compared_or_is_allowed_nevertheless_is_said() -> None:
    uncompared = GateVerdict(passed=True, reason="could not be checked: no loss", compared=False)
    failed = GateVerdict(passed=False, reason="far")
    first, second, third = notes({"compile=blocks": uncompared, "precision=fp16": failed, "accumulation": failed}, 1)
    assert first.startswith("compile=blocks: the gradient was not compared with that of the baseline: could not")
    assert second == "precision=fp16: far; kept, as numerics='any' allows"
    assert third == "accumulation: far; kept, as numerics='any' allows"


def test_accumulation_says_how_micro_batches_are_weighted_and_what_moves() -> None:
    verdict = GateVerdict(passed=True, reason="alike", weighing="1", moves=("model.teacher",), evaluated=True)
    weighing, moving, evaluated = notes({"accumulation": verdict}, 4)
    assert "micro batches are added up, and so are the 4 micro batches of the baseline" in weighing
    assert "changes model.teacher by itself" in moving
    assert "evaluation mode" in evaluated
    assert list(notes({"accumulation": GateVerdict(passed=True, reason="alike")}, 4)) == []
