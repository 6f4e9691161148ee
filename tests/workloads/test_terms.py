"""Terms that are given replace those of the tuning: the functions together, the optimizer by itself."""

import torch
import torch.nn.functional as F

from autofit.workloads.workload import Terms
from tests.probing import targets
from tests.workloads import gans


def test_what_is_not_given_is_that_of_the_tuning() -> None:
    optimizer = torch.optim.SGD(targets.mlp().parameters())
    tuned = Terms(loss_fn=F.cross_entropy, optimizer=optimizer)
    assert Terms().completed_by(tuned) == tuned
    assert Terms(step_fn=targets.token_mean).completed_by(tuned) == Terms(None, targets.token_mean, optimizer)


def test_a_function_replaces_all_others() -> None:
    found = Terms(update_fn=gans.update).completed_by(Terms(loss_fn=F.cross_entropy))
    assert found == Terms(update_fn=gans.update)


def test_the_optimizer_that_is_given_is_used() -> None:
    tuned, given = (torch.optim.SGD(targets.mlp().parameters()) for _ in range(2))
    assert Terms(optimizer=given).completed_by(Terms(optimizer=tuned)).optimizer is given
