"""A call of a decoder gets packed tokens with their positions, or is not packed."""

from typing import Any

import pytest
import torch

from autofit.strategies.packed_decoder import depends_on_rows, named_arguments, pack_decoder
from tests.fakes.decoders import Decoder

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 9, 0, 0, 0]])
MASK = (IDS != 0).long()


def pack(*args: Any, **kwargs: Any) -> Any:
    decoder = Decoder(10)
    return pack_decoder(decoder, decoder.forward, args, kwargs)


def test_tokens_and_their_positions_are_packed() -> None:
    arguments, places = pack(IDS, attention_mask=MASK, use_cache=None, return_dict=True)
    assert arguments["input_ids"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]]
    assert arguments["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]]
    assert (arguments["attention_mask"], arguments["use_cache"], arguments["return_dict"]) == (None, False, True)
    assert places.tolist() == [[0, 1, 2, 3, 4], [5, 6, 0, 0, 0], [7, 8, 0, 0, 0]]


def test_token_types_are_packed_with_their_tokens() -> None:
    arguments, _ = pack(IDS, MASK, token_type_ids=IDS + 10)
    assert arguments["token_type_ids"].tolist() == [[11, 12, 13, 14, 15], [16, 17, 18, 19, 11]]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"attention_mask": torch.ones(3, 5)},
        {"attention_mask": MASK, "token_type_ids": IDS[:, :1]},
        {"attention_mask": MASK, "use_cache": True},
    ],
    ids=["no mask", "no padding", "other types", "a cache"],
)
def test_other_calls_are_not_packed(given: dict[str, Any]) -> None:
    assert pack(IDS, **given) is None


def test_arguments_are_named_as_the_function_names_them() -> None:
    def function(first: int, second: int = 2, **others: int) -> None:
        """A function with all kinds of arguments that models have."""

    assert named_arguments(function, (1,), {"third": 3}) == {"first": 1, "third": 3}
    assert named_arguments(function, (1, 5), {}) == {"first": 1, "second": 5}


def test_what_depends_on_rows_is_a_tensor_a_cache_or_a_result_of_each_layer() -> None:
    decoder = Decoder(10)
    plain: dict[str, Any] = {"input_ids": IDS, "scale": torch.tensor(2.0), "past_key_values": None}
    assert not depends_on_rows(decoder, plain, ("input_ids",))
    for other in ({"images": torch.zeros(3, 2)}, {"past_key_values": object()}, {"output_attentions": True}):
        assert depends_on_rows(decoder, plain | other, ("input_ids",))
    decoder.config.output_hidden_states = True
    assert depends_on_rows(decoder, plain, ("input_ids",))
