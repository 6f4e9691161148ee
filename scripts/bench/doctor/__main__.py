"""Silence of the doctor: what it finds in trainings that are written as they should be.

The examples, small architectures of `transformers` with random weights, and trainings of many kinds are diagnosed;
scripts with Hugging Face's and Lightning's trainers run under `autofit doctor --script`, and loops under
`autofit.watch`. A finding of 1 % of the peak or more, and each that grows, must be among `TRUE`, with its reason.
"""

import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from autofit import devices
from autofit.doctor.diagnose import diagnose_workload
from autofit.doctor.diagnosis import LEAST_RATIO, Diagnosis, Finding
from autofit.workloads.factory import as_arguments
from autofit.workloads.workload import Workload
from scripts.bench import gain, report
from scripts.bench.doctor import loops
from scripts.bench.doctor.methods import METHODS
from scripts.bench.doctor.models import MODELS

EXAMPLES = ("convnet", "ema_teacher", "gan", "gpt", "huggingface", "tabular")
WORDS, LENGTH = 512, 32
TRUE: MappingProxyType[tuple[str, str], str] = MappingProxyType(
    {
        ("example gan", "gradient-dropped"): "the generator's loss gives the discriminator gradients that are zeroed",
        ("example gpt", "padding"): "its texts vary in length, for autofit tune to pack them",
        ("example huggingface", "padding"): "its texts vary in length, for autofit tune to pack them",
        ("plain compiled for lengths", "padding"): "its texts vary in length, for the compiler to meet several sizes",
        (
            "script two optimizers",
            "dead-at-peak",
        ): "its variable keeps the samples of the critic, 8 KiB, in the last pass",
        ("transformers bert", "no-gradient"): "nothing trains the pooler, whose output no loss uses",
        ("transformers gpt-2", "heavy-module"): "its activation is written out, and saves more than the built-in one",
    }
)
"""Findings that are true, by case and kind, with the reason."""
TRUE_KINDS = MappingProxyType({"optimizer-peak": "measured with a fused update, which the default one is not"})
"""Kinds of findings that are true in every case, with the reason."""


def _texts(**more: Any) -> dict[str, Tensor]:
    words = torch.randint(3, WORDS, (LENGTH,))
    return {"input_ids": words, "labels": words, **more}


def _classes(key: str, *shape: int, **more: Tensor) -> dict[str, Tensor]:
    return {key: torch.randn(*shape), "labels": torch.tensor(1), **more}


def _picture() -> dict[str, Tensor]:
    return _classes("pixel_values", 3, 32, 32)


_GPT = {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}
_BERT = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 256}
_LLAMA = _BERT | {"num_key_value_heads": 2}
_IMAGES = {"image_size": 32, "patch_size": 4}
_T5 = {"d_model": 128, "d_ff": 256, "d_kv": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_WAVES = _BERT | {"conv_dim": (32, 32), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2}
_WHISPER = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "num_mel_bins": 20, "max_source_positions": 50, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_CLIP = {
    "text_config": _BERT | {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "vision_config": _BERT | _IMAGES,
}
TRANSFORMERS: MappingProxyType[str, tuple[str, str, dict[str, Any], Callable[[], dict[str, Tensor]]]] = (
    MappingProxyType(
        {
            "gpt-2": ("GPT2Config", "GPT2LMHeadModel", _GPT, _texts),
            "llama": ("LlamaConfig", "LlamaForCausalLM", _LLAMA, _texts),
            "mistral": ("MistralConfig", "MistralForCausalLM", _LLAMA, _texts),
            "bert": ("BertConfig", "BertModel", _BERT, lambda: {"input_ids": _texts()["input_ids"]}),
            "bert, masked": ("BertConfig", "BertForMaskedLM", _BERT, _texts),
            "distilbert": (
                "DistilBertConfig", "DistilBertForSequenceClassification", {"dim": 128, "n_layers": 3, "n_heads": 4},
                lambda: {"input_ids": _texts()["input_ids"], "labels": torch.tensor(1)},
            ),
            "t5": ("T5Config", "T5ForConditionalGeneration", _T5, _texts),
            "vit": ("ViTConfig", "ViTForImageClassification", _BERT | _IMAGES, _picture),
            "swin": (
                "SwinConfig", "SwinForImageClassification",
                _IMAGES | {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
                _picture,
            ),
            "convnext": (
                "ConvNextConfig", "ConvNextForImageClassification", {"hidden_sizes": [16, 32, 64], "depths": [1, 1, 1],
                "num_stages": 3}, lambda: _classes("pixel_values", 3, 64, 64),
            ),
            "whisper": (
                "WhisperConfig", "WhisperForConditionalGeneration", _WHISPER,
                lambda: {"input_features": torch.randn(20, 100), "labels": torch.randint(3, WORDS, (16,))},
            ),
            "wav2vec2": (
                "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", _WAVES, lambda: _classes("input_values", 4000)
            ),
            "mixtral": ("MixtralConfig", "MixtralForCausalLM", _LLAMA | {"num_local_experts": 4}, _texts),
            "mamba": ("MambaConfig", "MambaForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2}, _texts),
            "rwkv": ("RwkvConfig", "RwkvForCausalLM", {"hidden_size": 64, "num_hidden_layers": 2}, _texts),
            "clip": (
                "CLIPConfig", "CLIPModel", _CLIP,
                lambda: {"input_ids": _texts()["input_ids"], "pixel_values": torch.randn(3, 32, 32)},
            ),
            "gpt-2, checkpointed": ("GPT2Config", "GPT2LMHeadModel", _GPT | {"checkpointed": True}, _texts),
        }
    )
)  # fmt: skip
"""By name: class of the config, class of the model, sizes, and a sample."""


def of_transformers(name: str) -> dict[str, Any]:
    """Returns a workload with a small model of `transformers` with random weights."""
    import transformers  # noqa: PLC0415  # takes seconds

    config, kind, sizes, sample = TRANSFORMERS[name]
    again = sizes.pop("checkpointed", False) if (sizes := dict(sizes)) else False
    if "text_config" not in sizes and "image_size" not in sizes:
        sizes |= {"vocab_size": WORDS}
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    if again:
        model.gradient_checkpointing_enable()
    samples = [sample() for _ in range(64)]
    loss = {"clip": _contrasted, "bert": _states}.get(name)
    given = {"model": model, "loader": DataLoader(samples, batch_size=8)}  # type: ignore[arg-type]  # a list will do
    return given if loss is None else given | {"step_fn": loss}


def _contrasted(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    found: Tensor = model(**batch, return_loss=True).loss
    return found


def _states(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    found: Tensor = model(**batch).last_hidden_state.square().mean()
    return found


def diagnosed(make: Callable[[], dict[str, Any]], name: str) -> Diagnosis:
    """Returns what the doctor finds in a workload."""
    torch.manual_seed(0)
    return diagnose_workload(Workload(**make()), devices.choose("cpu"), name)


def counts(finding: Finding, peak_bytes: int) -> bool:
    """Returns whether a finding is one that may not be false: the smallest size in bytes plays no part."""
    size = finding.size
    if size is None or size.peak_bytes is None:
        return size is not None or not finding.minor
    return not finding.minor or size.peak_bytes >= LEAST_RATIO * peak_bytes


def measure(name: str, find: Callable[[], Diagnosis]) -> dict[str, Any]:
    """Returns and prints what was found, and the time that it took."""
    began_s = time.perf_counter()
    try:
        found = find()
    except Exception as error:  # noqa: BLE001  # the next case is run all the same
        print(f"{name:24s} FAILED: {type(error).__name__}: {error}", flush=True)
        return {"case": name, "failed": f"{type(error).__name__}: {error}", "ok": False}
    spent_s = time.perf_counter() - began_s
    counted = [each for each in found.findings if counts(each, found.peak_bytes)]
    false = [each for each in counted if (name, each.id) not in TRUE and each.id not in TRUE_KINDS]
    failed = next((note for note in found.notes if "failed" in note), "")
    print(
        f"{name:24s} {spent_s:5.1f} s, peak {found.peak_bytes / 2**20:6.1f} MiB{f'; {failed}' if failed else ''}",
        flush=True,
    )
    for each in counted:
        print(f"    {'FALSE' if each in false else 'true '} {each.id}: {each.what}", flush=True)
    for left in found.unchecked:
        print(f"    not checked: {left.id}: {left.reason}", flush=True)
    return {
        "case": name,
        "seconds": spent_s,
        "watch_s": found.duration_s,
        "peak_bytes": found.peak_bytes,
        "findings": [each.model_dump() for each in counted],
        "unchecked": [each.model_dump() for each in found.unchecked],
        "notes": found.notes,
        "ok": not false and not failed,
    }


def cases() -> dict[str, Callable[[], Diagnosis]]:
    """Returns all cases by name."""
    found: dict[str, Callable[[], Diagnosis]] = {}
    for name in EXAMPLES:
        found[f"example {name}"] = lambda name=name: diagnosed(  # type: ignore[misc]  # a lambda's default
            lambda: as_arguments(gain.load(name).make_workload(), name), name
        )
    for name in TRANSFORMERS:
        found[f"transformers {name}"] = lambda name=name: diagnosed(lambda: of_transformers(name), name)  # type: ignore[misc]
    for name, make in (MODELS | METHODS).items():
        found[f"plain {name}"] = lambda name=name, make=make: diagnosed(make, name)  # type: ignore[misc]
    for name, loop in loops.LOOPS.items():
        found[f"loop {name}"] = lambda loop=loop: loops.watched(loop)  # type: ignore[misc]
    for name, text in loops.SCRIPTS.items():
        found[f"script {name}"] = lambda name=name, text=text: loops.of_script(name, text)  # type: ignore[misc]
    return found


def main() -> None:
    parser = report.parser(__doc__ or "")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of cases; all by default")
    given = parser.parse_args()
    chosen = {name: find for name, find in cases().items() if not given.cases or name.startswith(tuple(given.cases))}
    rows = [measure(name, find) for name, find in chosen.items()]
    bad = [row["case"] for row in rows if not row["ok"]]
    slowest = max((row.get("seconds", 0.0) for row in rows), default=0.0)
    passed = not bad and bool(rows)
    verdict = "ok" if passed else f"MISSED: {', '.join(bad) or 'no case'}"
    summary = (
        f"doctor: {len(rows) - len(bad)} of {len(rows)} trainings without a false finding, at most {slowest:.0f} s"
    )
    report.finish(f"{summary}: {verdict}", {"cases": rows}, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
