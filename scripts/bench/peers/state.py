"""The state that a training continues from, before and after a search."""

import random
from contextlib import suppress
from typing import Any

import numpy
import torch

import autofit
from autofit.core.errors import BudgetSpent
from autofit.guard.object_state import fingerprint
from autofit.workloads.workload import Workload
from scripts.bench.peers import models
from scripts.bench.peers.models import Problem


def state_of(workload: Workload) -> dict[str, str]:
    """Returns a digest of each kind of state that a training continues from."""
    model, optimizer = workload.model, workload.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer), "made with the problem"
    return {
        "weights": fingerprint(dict(model.named_parameters())),
        "buffers": fingerprint(dict(model.named_buffers())),
        "gradients": fingerprint([parameter.grad for parameter in model.parameters()]),
        "optimizer": fingerprint(optimizer.state_dict()),
        "generators": fingerprint([torch.get_rng_state(), numpy.random.get_state(), random.getstate()]),
        "modes": fingerprint({name: module.training for name, module in model.named_modules()}),
    }


def autofit_state(model: str) -> dict[str, Any]:
    """Returns the state that a short `autofit.tune` in the user's own process changes."""
    w = Problem.of(model).workload
    before = state_of(w)
    with suppress(BudgetSpent):  # possible on a busy machine; a search without a result must not change anything either
        autofit.tune(
            w.model, w.loader, loss_fn=w.loss_fn, step_fn=w.step_fn, optimizer=w.optimizer, study=":memory:",
            max_grad_norm=w.max_grad_norm, memory_budget=models.MODELS[model][1], time_budget=15, device="cpu",
            progress=False,
        )  # fmt: skip
    after = state_of(w)
    return {"changed": [name for name in before if before[name] != after[name]]}
