"""Each plan is compiled as if it were the only one."""

import pytest
import torch
from torch._dynamo import config
from torch._dynamo.utils import counters

from autofit.probing.compilation import MOST_COMPILED, shapes_of_a_training, start_cold


def test_each_size_is_compiled_for_itself_while_shapes_are_fixed() -> None:
    before = config.automatic_dynamic_shapes, config.recompile_limit
    with shapes_of_a_training(vary=False):
        assert (config.automatic_dynamic_shapes, config.recompile_limit) == (False, MOST_COMPILED)
    assert (config.automatic_dynamic_shapes, config.recompile_limit) == before


def test_where_shapes_vary_nothing_is_changed() -> None:
    before = config.automatic_dynamic_shapes, config.recompile_limit
    with shapes_of_a_training(vary=True):
        assert (config.automatic_dynamic_shapes, config.recompile_limit) == before


@pytest.mark.parametrize("compiled", [True, False])
def test_only_a_process_that_compiled_is_reset(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[None] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(None))
    monkeypatch.setitem(counters, "frames", {"total": 1} if compiled else {})
    start_cold()
    assert len(resets) == compiled
