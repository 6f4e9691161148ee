"""The fake decoder keeps the samples of a row apart as those of `transformers` do, unless it leaks."""

import pytest
import torch

from tests.fakes.decoders import Classifier, Decoder

ROW = torch.tensor([[1, 2, 3, 4, 5]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1]])


def hidden(decoder: Decoder, **given: torch.Tensor | bool) -> torch.Tensor:
    output: torch.Tensor = decoder(**given)[0]
    return output


@pytest.mark.parametrize("leaks", [False, True])
def test_samples_of_a_row_are_kept_apart_by_their_positions(leaks: bool) -> None:
    decoder = Decoder(6, leaks)
    packed = hidden(decoder, input_ids=ROW, position_ids=POSITIONS, use_cache=False)
    alone = hidden(decoder, input_ids=ROW[:, 3:])
    assert torch.allclose(packed[:, 3:], alone, atol=1e-6) is not leaks


def test_with_a_cache_they_are_not() -> None:
    decoder = Decoder(6)
    packed = hidden(decoder, input_ids=ROW, position_ids=POSITIONS, use_cache=True)
    assert not torch.allclose(packed[:, 3:], hidden(decoder, input_ids=ROW[:, 3:]), atol=1e-4)


def test_padding_changes_no_token_and_no_class() -> None:
    classifier = Classifier(6)
    padded = torch.nn.functional.pad(ROW, (0, 3))
    assert torch.allclose(classifier(padded), classifier(ROW), atol=1e-6)
