"""A model of transformers has one identity in every process, whatever the hashes of texts are there."""

import subprocess
import sys

import pytest

CODE = """
import transformers as t
from torch.utils.data import DataLoader, TensorDataset
from autofit.identity import Reached
from autofit.workloads.workload import Workload
import torch

SMALL = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
models = [
    t.GPT2LMHeadModel(t.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)),
    t.T5ForConditionalGeneration(t.T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)),
    t.LlamaForCausalLM(t.LlamaConfig(num_key_value_heads=2, **SMALL)),
    t.BertForMaskedLM(t.BertConfig(**SMALL)),
    t.ViTForImageClassification(t.ViTConfig(image_size=16, patch_size=8, **{k: SMALL[k] for k in list(SMALL)[1:]})),
    t.MambaForCausalLM(t.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, state_size=4)),
]
loader = DataLoader(TensorDataset(torch.zeros(4, 8, dtype=torch.long)))
for model in models:
    workload = Workload(model=model, loader=loader, step_fn=lambda m, b: m(b[0]))
    print(type(model).__name__, Reached.of(workload).digests([]))
"""


@pytest.mark.slow
def test_models_of_transformers_have_one_identity_in_every_process() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", CODE],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path), "TRANSFORMERS_VERBOSITY": "error"},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0].count("attributes") == 6
    assert texts[0] == texts[1]
