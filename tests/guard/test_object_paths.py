"""An entry is named so that a person finds it."""

import torch
from torch import nn

from autofit.guard.object_paths import Labels


def test_names_are_attributes_indices_and_positions_in_the_optimizer() -> None:
    model, labels = nn.Linear(2, 2), Labels()
    labels.number(torch.optim.SGD(model.parameters(), lr=0.1))
    assert labels.of("loader", "dataset") == "loader.dataset"
    assert labels.of("seen", 3) == "seen[3]"
    assert labels.of("seen", (1, 2)) == "seen[tuple]"
    assert labels.of("optimizer.state", model.bias) == "optimizer.state[1]"
    assert labels.of("optimizer.state", torch.ones(1)) == "optimizer.state[?]"
