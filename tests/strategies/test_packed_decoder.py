"""A call of a decoder gets packed tokens with their positions, or is not packed."""

from typing import Any

import pytest
import torch

from autofit.strategies.packed_decoder import decoder_lack, depends_on_rows, named_arguments, pack_decoder
from tests.fakes.decoders import Decoder

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0], [8, 9, 0, 0, 0]])
MASK = (IDS != 0).long()
ROTARY = {"position_embeddings": (torch.zeros(1, 5, 2), torch.zeros(1, 5, 2))}


def pack(*args: Any, **kwargs: Any) -> Any:
    decoder = Decoder(10)
    return pack_decoder(decoder, decoder.forward, args, kwargs)


def test_tokens_and_their_positions_are_packed() -> None:
    found = pack(IDS, attention_mask=MASK, use_cache=None, return_dict=True)
    arguments = found.arguments
    assert arguments["input_ids"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]]
    assert arguments["position_ids"].tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 0]]
    assert (arguments["attention_mask"], arguments["use_cache"], arguments["return_dict"]) == (None, False, True)
    assert found.places.tolist() == [[0, 1, 2, 3, 4], [5, 6, -1, -1, -1], [7, 8, -1, -1, -1]]
    assert found.sources.tolist() == [[0, 1, 2, 3, 4], [5, 6, 10, 11, -1]]


def test_token_types_are_packed_with_their_tokens() -> None:
    found = pack(IDS, MASK, token_type_ids=IDS + 10)
    assert found.arguments["token_type_ids"].tolist() == [[11, 12, 13, 14, 15], [16, 17, 18, 19, 11]]


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
    for other in (
        {"images": torch.zeros(3, 2)},
        {"past_key_values": object()},
        {"output_attentions": True},
        {"use_cache": True},
        ROTARY,
    ):
        assert depends_on_rows(decoder, plain | other, ("input_ids",))
    decoder.config.output_hidden_states = True
    assert depends_on_rows(decoder, plain, ("input_ids",))


def test_an_implementation_that_was_changed_since_is_not_packed() -> None:
    decoder = Decoder(10)
    decoder.set_attn_implementation("flash_attention_2")
    assert pack_decoder(decoder, decoder.forward, (IDS, MASK), {}) is None


def test_a_decoder_without_positions_lacks_them() -> None:
    class Positionless(Decoder):
        def forward(self, input_ids: Any, attention_mask: Any = None, use_cache: Any = None) -> Any:  # type: ignore[override]
            return super().forward(input_ids, attention_mask)

    assert decoder_lack(Decoder(10)) is None
    assert "the forward of Positionless has no past_key_values and no position_ids" in str(
        decoder_lack(Positionless(10))
    )


def test_a_version_of_transformers_that_ignores_positions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    masks = pytest.importorskip("transformers.masking_utils")
    model = transformers.LlamaModel(
        transformers.LlamaConfig(
            num_hidden_layers=1, hidden_size=8, intermediate_size=8, num_attention_heads=1, vocab_size=9
        )
    )
    assert decoder_lack(model) is None
    monkeypatch.delattr(masks, "find_packed_sequence_indices")
    assert "this version of transformers does not keep" in str(decoder_lack(model))
