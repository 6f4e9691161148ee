"""Blocks that are checkpointed one by one, seen in a real training."""

from pathlib import Path

import pytest
from torch import nn

from autofit.core.errors import UsageError
from autofit.core.plan import KnobValue
from autofit.integrations.huggingface import checkpoint_some
from tests.conformance.test_exporters import OWN
from tests.integrations.huggingface.training import LAYERS, arguments, model, trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "twice"),
    [
        ({"checkpointed_blocks": 2}, {0, 1}),
        ({"checkpointed_blocks": 4}, {0, 1, 2, 3}),
    ],
)
def test_the_chosen_blocks_run_again_in_the_backward_pass(
    values: dict[str, KnobValue], twice: set[int], tmp_path: Path
) -> None:
    net = model()
    checkpoint_some(net, OWN.replace(**values))
    runs = [0] * LAYERS

    def watch(place: int) -> None:
        def seen(module: nn.Module, inputs: object) -> None:
            runs[place] += 1

        net.transformer.h[place].mlp.register_forward_pre_hook(seen)

    for place in range(LAYERS):
        watch(place)
    trainer(arguments(tmp_path), model=net).train()
    assert runs == [4 if place in twice else 2 for place in range(LAYERS)]


def test_blocks_that_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(UsageError, match="found a model with 4 blocks"):
        checkpoint_some(model(), OWN.replace(checkpointed_blocks=5))


def test_a_model_of_another_library_has_no_blocks() -> None:
    with pytest.raises(UsageError, match="found a model with 0 blocks"):
        checkpoint_some(nn.Sequential(nn.Linear(2, 2)), OWN.replace(checkpointed_blocks=1))
