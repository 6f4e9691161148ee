"""Models run packed rows and give what they would for the batch; those that mix the samples of a row are found."""

import copy
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.packable_models import (
    change_of_others,
    decoder_lack,
    depends_on_rows,
    lack,
    named_arguments,
    pack_decoder,
    pack_for_good,
    packable_models,
    packing,
)
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft
from tests.fakes.decoders import Classifier, Decoder

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


def test_token_types_are_packed_with_their_tokens_for_a_decoder() -> None:
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


VOCABULARY = 40
LENGTHS = [30, 7, 11, 3, 9]


def batch(left: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for row, length in enumerate(LENGTHS):
        part = slice(max(LENGTHS) - length, None) if left else slice(0, length)
        ids[row, part] = labels[row, part] = torch.randint(1, VOCABULARY, (length,), generator=generator)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def without_labels() -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in batch().items() if name != "labels"}


def change(model: Any) -> float | None:
    return change_of_others(model, batch()["input_ids"], batch()["attention_mask"])


def of_transformers(kind: str, **changes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **changes})
    model: nn.Module = getattr(transformers, changes.get("head", f"{kind}ForCausalLM"))(config)
    return model


def gpt2(**changes: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=VOCABULARY, **quiet, **changes)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    return model


QUIET: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
T5: dict[str, Any] = {"d_model": 32, "d_ff": 48, "num_heads": 2, "head": "T5ForConditionalGeneration"}


def bloom() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model: nn.Module = transformers.BloomForCausalLM(
        transformers.BloomConfig(n_layer=1, hidden_size=16, n_head=2, vocab_size=VOCABULARY)
    )
    return model


APART: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "gpt2 eager": lambda: gpt2(attn_implementation="eager"),
    "llama": lambda: of_transformers("Llama"),
    "mistral with a window": lambda: of_transformers("Mistral", num_key_value_heads=1, sliding_window=5),
    "mixtral": lambda: of_transformers("Mixtral", num_key_value_heads=1, num_local_experts=3),
}
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: of_transformers("Bert", **QUIET, head="BertForMaskedLM"),
    "bert eager": lambda: of_transformers("Bert", **QUIET, head="BertForMaskedLM", attn_implementation="eager"),
    "roberta": lambda: of_transformers("Roberta", **QUIET, head="RobertaForMaskedLM"),
    "albert": lambda: of_transformers("Albert", embedding_size=16, head="AlbertForMaskedLM"),
}
MIXING: dict[str, Callable[[], nn.Module]] = {
    "short convolutions": lambda: of_transformers(
        "Lfm2", num_key_value_heads=1, layer_types=["conv", "full_attention"]
    ),
    "positions that the mask ignores": lambda: of_transformers(
        "Bert", is_decoder=True, hidden_dropout_prob=0.0, head="BertLMHeadModel"
    ),
}


def gradient_of(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    model.zero_grad()
    loss = model(**batch()).loss
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("kind", [*APART, *ENCODERS])
def test_loss_and_gradient_are_those_of_the_padded_batch(kind: str) -> None:
    model = (APART | ENCODERS)[kind]()
    shapes = list[tuple[int, ...]]()
    (layers, *_) = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    handle = layers[0].register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape[:2])))
    loss, gradient = gradient_of(model)
    with packing(packable_models(model)) as packed:
        packed_loss, packed_gradient = gradient_of(model)
    handle.remove()
    assert len(packed) == 1
    assert list(dict.fromkeys(shapes)) == [(5, 30), (2, 30)]
    torch.testing.assert_close(packed_loss, loss, rtol=1e-6, atol=0)
    assert float((packed_gradient - gradient).norm() / gradient.norm()) < 2e-6


@pytest.mark.parametrize("kind", [*APART, *ENCODERS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_tokens_in_a_row_change_nothing(kind: str, dtype: torch.dtype) -> None:
    model = (APART | ENCODERS)[kind]().to(dtype)
    model.train()
    assert [change(decoder) for decoder in packable_models(model)] == [0.0]
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoders_that_mix_the_samples_of_a_row_are_found(kind: str, dtype: torch.dtype) -> None:
    (decoder,) = packable_models(MIXING[kind]().to(dtype))
    assert (change(decoder) or 0) > 1e-4


def test_a_fake_that_leaks_is_found() -> None:
    assert change(Decoder(VOCABULARY)) == 0
    assert (change(Decoder(VOCABULARY, leaks=True)) or 0) > 1e-3


def test_the_users_forward_is_put_back() -> None:
    decoder = Decoder(VOCABULARY)
    with packing([decoder]):
        assert "forward" in vars(decoder)
        decoder(**without_labels())
    assert "forward" not in vars(decoder)
    decoder(**without_labels())
    assert decoder.calls == [(2, 30), (5, 30)]


def test_what_is_evaluated_is_not_packed() -> None:
    decoder = Decoder(VOCABULARY).eval()
    with packing([decoder]), torch.no_grad():
        decoder(**without_labels())
        decoder.train()
        decoder(**without_labels())
    assert decoder.calls == [(5, 30), (2, 30)]


def test_a_pass_without_gradient_and_its_repetition_draw_the_same_random_numbers() -> None:
    """Contrastive losses over large batches compute embeddings first, and each part again with its gradient."""
    model = of_transformers("Llama", attention_dropout=0.5)
    given = {name: batch()[name] for name in ("input_ids", "attention_mask")}
    with packing(packable_models(model)):
        torch.manual_seed(0)
        with torch.no_grad():
            first = model(**given).logits
        torch.manual_seed(0)
        assert torch.equal(model(**given).logits, first)


def test_a_packed_model_shows_the_users_signature_and_is_packed_once_more_alike() -> None:
    model = of_transformers("Llama")
    (decoder,) = packable_models(model)
    before = inspect.signature(decoder.forward)
    expected, _ = gradient_of(model)
    pack_for_good([decoder])
    pack_for_good(packable_models(model))
    assert inspect.signature(decoder.forward) == before
    torch.testing.assert_close(gradient_of(model)[0], expected, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_a_pickled_model_runs_in_a_fresh_process(tmp_path: Path) -> None:
    model = gpt2()
    pack_for_good(packable_models(model))
    torch.save((model, batch(), gradient_of(model)[0]), tmp_path / "model.pt")
    code = (
        "import sys, torch; model, batch, loss = torch.load(sys.argv[1], weights_only=False); "
        "torch.testing.assert_close(model(**batch).loss, loss)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True, timeout=120)


def test_a_packed_model_generates_the_texts_of_the_unpacked_one() -> None:
    model = of_transformers("Llama").eval()
    prompts = {name: batch(left=True)[name] for name in ("input_ids", "attention_mask")}

    def texts() -> tuple[torch.Tensor, torch.Tensor]:
        first = model(**prompts, use_cache=True)
        token = first.logits[:, -1:].argmax(-1)
        mask = torch.cat([prompts["attention_mask"], torch.ones_like(token)], 1)
        second = model(token, attention_mask=mask, past_key_values=first.past_key_values).logits
        sampled: Any = model
        return second.detach(), sampled.generate(**prompts, max_new_tokens=4, do_sample=False)

    expected = texts()
    with packing(packable_models(model)):
        for mine, theirs in zip(texts(), expected, strict=True):
            assert torch.equal(mine, theirs)


def test_a_packed_model_can_be_pickled() -> None:
    model = gpt2()
    with packing(packable_models(model)):
        other = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(gradient_of(other)[1], gradient_of(model)[1], rtol=0, atol=0)
    torch.testing.assert_close(gradient_of(other)[0], gradient_of(model)[0], rtol=1e-6, atol=0)


def test_a_copy_of_a_packed_decoder_runs_its_own_weights() -> None:
    decoder = Decoder(VOCABULARY)
    with packing([decoder]):
        other = copy.deepcopy(decoder)
    nn.init.zeros_(other.positions.weight)
    other(**without_labels())
    assert (decoder.calls, other.calls) == ([], [(2, 30)])


@pytest.mark.parametrize(
    "given",
    [
        {"position_ids": torch.arange(30).expand(5, 30)},
        {"past_key_values": object()},
        {"inputs_embeds": torch.zeros(5, 30, 8)},
        {"output_hidden_states": True},
        {"pixel_values": torch.zeros(5, 3)},
        {"attention_mask": None},
        {"attention_mask": torch.ones(5, 1, 30, 30)},
        {"attention_mask": torch.ones(5, 30)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_call_that_cannot_be_packed_runs_as_it_is(given: dict[str, Any]) -> None:
    decoder = Decoder(VOCABULARY)
    mask = given.get("attention_mask")
    if mask is not None and mask.dim() == 4:
        decoder.forward = lambda **_: (torch.zeros(5, 30, 8),)  # type: ignore[method-assign]  # the fake reads 2-D masks
    with packing([decoder]):
        (hidden,) = decoder(**without_labels() | given)
    assert hidden.shape[:2] == (5, 30)
    assert decoder.calls in ([(5, 30)], [])


def test_numbers_and_settings_do_not_prevent_packing() -> None:
    decoder = Decoder(VOCABULARY)
    with packing([decoder]):
        decoder(**without_labels(), num_items_in_batch=torch.tensor(9), return_dict=True)
    assert decoder.calls == [(2, 30)]


def test_token_types_are_packed_with_their_tokens() -> None:
    model = gpt2()
    types = torch.randint(1, VOCABULARY, (5, 30), generator=torch.Generator().manual_seed(1))
    expected = model(**batch(), token_type_ids=types).loss
    with packing(packable_models(model)):
        torch.testing.assert_close(model(**batch(), token_type_ids=types).loss, expected, rtol=1e-6, atol=0)


def test_only_models_with_the_interface_of_transformers_are_packed() -> None:
    assert lack(Classifier(VOCABULARY)) is None
    assert "no part that is a language model of transformers" in str(lack(nn.Linear(2, 2)))
    decoder = Decoder(VOCABULARY)
    decoder.set_attn_implementation("flash_attention_2")
    assert "attn_implementation='flash_attention_2'; expected sdpa or eager" in str(lack(decoder))
    decoder.set_attn_implementation("sdpa")
    decoder.config.output_router_logits = True
    assert "output_router_logits=True" in str(lack(decoder))


def test_models_that_cannot_be_packed_say_why() -> None:
    assert "BloomModel has no single stack of layers that takes hidden_states and attention_mask" in str(lack(bloom()))
    assert "T5Stack has no single stack of layers" in str(lack(of_transformers("T5", **T5)))


def test_a_model_that_did_not_run_packed_rows_is_found() -> None:
    model = of_transformers("DebertaV2", head="DebertaV2ForMaskedLM")
    assert lack(model) is None
    assert [change(each) for each in packable_models(model)] == [None]


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("compiled", ["blocks", "default"])
def test_compiled_code_runs_packed_rows(compiled: str) -> None:
    model = of_transformers("Llama")
    expected, gradient = gradient_of(model)
    rule = LossRule("own", lambda model, batch: model(**batch).loss, True, "")
    draft = Draft(model, rule, None, torch.device("cpu"), varies=True)
    with prepare(Plan(values={"packing": True, "compile": compiled}), draft, members()):
        loss, packed_gradient = gradient_of(model)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    assert float((packed_gradient - gradient).norm() / gradient.norm()) < 1e-5
