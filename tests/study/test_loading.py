"""A search that is the first to load Optuna does not keep its caller's variables alive."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import gc, os, sys, weakref
import torch
import torch._dynamo  # as its first optimizer does
from torch import nn

budget = "1GiB"
if (child := os.fork()):  # a process of its own for each way in which a search ends; torch is imported once
    assert os.waitpid(child, 0)[1] == 0, "the search that succeeds"
    budget = "1B"
assert not [name for name in sys.modules if name.startswith(("optuna", "autofit"))]

def main():
    import autofit
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    batches = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(4)]
    try:
        autofit.tune(
            model, batches, study=":memory:", progress=False, global_batch_size=1, memory_budget=budget,
            strategies=("batching",),
        )
    except autofit.NothingFits:
        assert budget == "1B"
    else:
        assert budget == "1GiB"
    return weakref.ref(model)

model = main()
gc.collect()
assert model() is None, "the model outlives the function that tuned it"
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process for each search")
def test_the_model_of_the_first_caller_is_freed_when_its_function_ends(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
