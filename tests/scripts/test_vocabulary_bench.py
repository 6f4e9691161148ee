"""The benchmark of the chunked loss: what it compares is the same training."""

from scripts.bench.memory import vocabulary


def test_loss_and_gradients_of_the_large_vocabulary_agree() -> None:
    found = vocabulary.distances()
    assert 0 <= max(found.values()) <= vocabulary.REQUIRED_DISTANCE
