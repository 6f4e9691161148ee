"""State inside library objects is watched and named (fault matrix F26)."""

import ctypes
import sys
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autofit.guard import Guard


def guard(step: Any, **more: Any) -> Guard:
    return Guard(nn.Linear(4, 2), functions={"step_fn": step}, **more)


@lru_cache
def mask_of(size: int) -> torch.Tensor:
    return torch.ones(size)


def test_f26_what_a_function_keeps_and_seeds_spawn_is_named_afterwards() -> None:
    seed = np.random.SeedSequence(1)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        child: Any = seed.spawn(1)[0]
        return mask_of(int(child.entropy))

    mask_of.cache_clear()
    with guard(step) as found:
        assert found.caveats == ()
    assert list(found.changed) == []
    with found:
        step(nn.Linear(1, 1), None)
    assert found.changed == ("step_fn.seed", "tests.guard.test_library_state.mask_of")


class Opaque:
    """Has memory that cannot be followed."""

    def __init__(self) -> None:
        self.memory = ctypes.c_char(b"0")


class Frame(Opaque):
    """Like a table of pandas."""

    size, shape = 1, (1, 1)

    @property
    def iloc(self) -> Any:
        return self

    def __getitem__(self, rows: slice) -> Any:
        return self

    def to_csv(self) -> str:
        return self.memory.value.decode()


class Picture(Opaque):
    """Like an image of Pillow; without `im` it is not loaded yet."""

    im: object = 1

    def tobytes(self) -> bytes:
        return self.memory.value


def test_f26_tables_and_images_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=Frame, Series=Frame))
    monkeypatch.setitem(sys.modules, "PIL.Image", SimpleNamespace(Image=Picture))
    table, picture, unread = Frame(), Picture(), Picture()
    unread.im = None
    data: Any = SimpleNamespace(table=table, picture=picture, unread=unread)
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        table.memory.value = picture.memory.value = unread.memory.value = b"1"
    assert found.changed == ("loader.dataset.table", "loader.dataset.picture")


def test_f26_a_table_of_pandas_is_watched() -> None:
    pandas = pytest.importorskip("pandas")
    table, column = pandas.DataFrame({"seen": [0, 0]}), pandas.Series([0.5])
    data: Any = SimpleNamespace(table=table, column=column)
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        assert found.caveats == ()
    assert list(found.changed) == []
    with found:
        table.loc[0, "seen"] = 1
        column.iloc[0] = 1.5
    assert found.changed == ("loader.dataset.table", "loader.dataset.column")
