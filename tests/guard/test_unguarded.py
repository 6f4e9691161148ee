"""What cannot be put back is named before the search, and a change to it after; an ordinary workload hears nothing."""

import ctypes
import io
import itertools
import logging
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autofit import api, in_process
from autofit.guard import Guard, unguarded
from tests.digests import digest_in

LOGGER = logging.getLogger(__name__)


def holding(thing: Any) -> Any:
    """Returns a step that a user could write around `thing`."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        LOGGER.debug("%s", thing)
        loss: torch.Tensor = model(batch[0]).mean()
        return loss

    return step


def unguarded_guard(step: Any, **more: Any) -> Guard:
    return Guard(nn.Linear(4, 2), functions={"step_fn": step}, **more)


def running() -> Iterator[int]:
    yield from range(100)


def opened() -> Any:
    return Path(__file__).open()


OPAQUE: dict[str, tuple[Callable[[], Any], str]] = {
    "file": (opened, "step_fn.thing (an open file)"),
    "socket": (socket.socket, "step_fn.thing (an object of type socket.socket)"),
    "lock": (threading.Lock, "step_fn.thing (a lock)"),
    "generator": (running, "step_fn.thing (a generator in progress)"),
    "count": (itertools.count, "step_fn.thing (an iterator in progress)"),
    "list iterator": (lambda: iter([1, 2]), "step_fn.thing (an iterator in progress)"),
    "loader iterator": (lambda: iter(DataLoader(TensorDataset(torch.ones(4)))), "step_fn.thing (an iterator in"),
    "memory of C": (lambda: ctypes.c_int(1), "step_fn.thing (an object of type ctypes.c_int)"),
    "inside": (lambda: SimpleNamespace(log=[opened()]), "step_fn.thing.log[0] (an open file)"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", OPAQUE)
def test_f26_what_cannot_be_followed_is_named_before_the_search(kind: str) -> None:
    make, named = OPAQUE[kind]
    thing = make()
    (caveat,) = unguarded_guard(holding(thing)).caveats
    assert caveat.startswith(f"cannot be restored if a step changes it: {named}"), caveat
    assert "extras=[...]" in caveat
    for each in (thing, *getattr(thing, "log", ())):
        if hasattr(each, "close"):
            each.close()


class Plain(Dataset[Any]):
    """Has what data sets usually have."""

    def __init__(self) -> None:
        self.rows, self.logger = [(f"{i}.png", i % 2) for i in range(50_000)], LOGGER
        self.array = np.zeros((8, 4))
        self.path, self.stdout = Path(), print

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.logger.debug("read %s", self.rows[index])
        return torch.zeros(4), self.rows[index][1]


def test_an_ordinary_workload_has_no_caveats() -> None:
    loader = DataLoader(Plain(), batch_size=4, shuffle=True, collate_fn=lambda rows: torch.stack([x for x, _ in rows]))
    model = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        LOGGER.info("%s", schedule.last_epoch)
        return nn.functional.mse_loss(model(batch), torch.zeros(len(batch), 2))

    found = Guard(model, optimizer, loader=loader, functions={"step_fn": step})
    assert found.caveats == ()


def test_a_tokenizer_of_transformers_is_no_caveat() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words), pad_token="[UNK]")
    rows: Any = [{"input_ids": [0]}]
    loader: Any = DataLoader(rows, collate_fn=transformers.DataCollatorWithPadding(tokenizer))
    assert Guard(nn.Linear(1, 1), loader=loader, functions={"step_fn": holding(tokenizer)}).caveats == ()


class Position:
    """How far a file is, as a user would hand it over."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def state_dict(self) -> dict[str, int]:
        return {"position": self.file.tell()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.file.seek(state["position"])


def test_what_is_handed_over_is_put_back_and_no_caveat() -> None:
    with opened() as file, unguarded_guard(holding(file), extras={"extras[0]": Position(file)}) as found:
        assert found.caveats == ()
        file.seek(7)
        found.restore()
        assert file.tell() == 0


def tune(step: Any, monkeypatch: pytest.MonkeyPatch, search: Callable[..., Any], **more: Any) -> Any:
    monkeypatch.setattr(in_process, "search", search)
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
    defaults: dict[str, Any] = {"device": "cpu", "study": ":memory:", "progress": False, "strategies": ("batching",)}
    return api.tune(nn.Linear(4, 2), loader, step_fn=step, **(defaults | more)).answer


class Answer(SimpleNamespace):
    """Like an answer."""

    def model_copy(self, update: dict[str, Any]) -> "Answer":
        return Answer(**vars(self) | update)


def test_f26_a_change_that_stays_is_said_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = itertools.count()

    def search(bench: Any, *_: Any) -> Any:
        assert "step_fn.thing (an iterator in progress)" in " ".join(bench.briefing.caveats)
        next(counter)
        return Answer(caveats=bench.briefing.caveats)

    said = tune(holding(counter), monkeypatch, search).caveats
    assert said[0] == "changed while tuning, and could not be restored: step_fn.thing"

    def failing(*_: Any) -> Any:
        next(counter)
        raise KeyError("ended")

    with pytest.raises(KeyError) as error:
        tune(holding(counter), monkeypatch, failing)
    assert error.value.__notes__ == ["changed while tuning, and could not be restored: step_fn.thing"]


def test_extras_of_tune_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ema, hidden = nn.Linear(4, 2), torch.zeros(3)
    before = ema.weight.detach().clone()

    def search(bench: Any, *_: Any) -> Any:
        ema.weight.data.add_(1)
        hidden.add_(1)
        return Answer(caveats=bench.briefing.caveats)

    tune(holding(None), monkeypatch, search, extras=[ema, hidden])
    assert torch.equal(ema.weight, before)
    assert hidden.tolist() == [0.0] * 3


# ---- large data


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unguarded, "DATA_BYTES", 1024)


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_f26_a_large_data_set_is_watched_and_named(kind: str) -> None:
    data: Any = SimpleNamespace(x=torch.zeros(64, 8) if kind == "tensor" else np.zeros((64, 8)), y=torch.ones(4))
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        (caveat,) = found.caveats
        assert caveat.startswith("watched but not copied, because it is large: loader.dataset.x ("), caveat
        data.y += 1
    assert list(found.changed) == []
    assert data.y.tolist() == [1.0] * 4
    with found:
        data.x[3] += 1
    assert found.changed == ("loader.dataset.x",)


@pytest.mark.usefixtures("small_limit")
def test_what_a_model_or_a_step_holds_is_copied_whatever_its_size() -> None:
    model, held = nn.Linear(64, 64), torch.zeros(4096)
    with Guard(model, functions={"step_fn": holding(held)}) as found:
        assert found.caveats == ()
        model.weight.data.add_(1)
        held.add_(1)
    assert float(held.sum()) == 0.0


def test_f26_a_memory_map_is_not_copied(tmp_path: Path) -> None:
    made = np.memmap(tmp_path / "data.bin", dtype=np.float32, mode="w+", shape=(64, 8))
    made.flush()
    modes: tuple[tuple[Literal["r", "r+"], int], ...] = (("r", 0), ("r+", 1))
    for mode, count in modes:
        data: Any = SimpleNamespace(x=np.memmap(tmp_path / "data.bin", dtype=np.float32, mode=mode, shape=(64, 8)))
        found = Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4)))
        assert len(found.caveats) == count, mode
        assert not any(piece.name == "loader.dataset.x" for piece in found.pieces)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_data_set_of_very_many_tensors_is_put_back_by_their_versions(pairs: bool) -> None:
    rows: list[Any] = [torch.zeros(1) for _ in range(unguarded.LONG + 1)]
    data: Any = SimpleNamespace(rows=[(row, 1) for row in rows] if pairs else rows)
    began = time.process_time()
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        assert found.caveats == ()
        rows[77].add_(1)
        version = rows[78]._version
        assert found.differences() == ["loader.dataset.rows"]
    assert float(rows[77]) == 0.0
    assert rows[77]._version == version
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_many_tensors_that_are_written_past_torch_are_put_back(dtype: torch.dtype) -> None:
    rows = [torch.zeros(3, 2, dtype=dtype).t() for _ in range(unguarded.MANY)]
    rows[5] = torch.full((), 0.0, dtype=dtype)
    if dtype.is_floating_point:
        rows[6].fill_(float("nan"))
    data: Any = SimpleNamespace(rows=rows)
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        assert found.differences() == []
        rows[5].data.fill_(1)
        rows[77].data[0, 1] = 1
        assert found.differences() == ["loader.dataset.rows"]
    assert not rows[5]
    assert not rows[77].any()
    assert rows[77].stride() == (1, 2)


@pytest.mark.usefixtures("small_limit")
def test_f26_very_many_tensors_that_are_large_are_watched() -> None:
    data: Any = SimpleNamespace(rows=[torch.zeros(8) for _ in range(unguarded.MANY)])
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        assert "loader.dataset.rows (8 KiB; at most 1 KiB of a data set is copied)" in found.caveats[0]
        data.rows[77].add_(1)
    assert found.changed == ("loader.dataset.rows",)


def test_very_many_objects_are_named() -> None:
    data: Any = SimpleNamespace(rows=[{"x": torch.zeros(1)} for _ in range(unguarded.LONG + 1)])
    found = Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4)))
    assert "loader.dataset.rows (10,001 entries)" in found.caveats[0]


def test_a_tokenised_data_set_of_lists_of_numbers_takes_little_time_and_is_put_back() -> None:
    data: Any = SimpleNamespace(rows=[list(range(500)) for _ in range(1000)])
    began = time.process_time()
    with Guard(nn.Linear(1, 1), loader=DataLoader(data, sampler=range(4))) as found:
        assert time.process_time() - began < 0.4
        assert found.caveats == ()
        data.rows[7][3] = -1
        data.rows[8].append(1)
        assert found.differences() == ["loader.dataset.rows[7]", "loader.dataset.rows[8]"]
    assert data.rows[7] == data.rows[8] == list(range(500))


@pytest.mark.parametrize("count", [3, unguarded.FEW, 200])
def test_what_stands_between_plain_values_is_followed(count: int) -> None:
    inner: list[int] = []
    thing = [*range(count - 1), inner, {"a": inner}]
    with unguarded_guard(holding(thing)) as found:
        inner.append(1)
        assert len(found.differences()) == 1
    assert inner == []


class Odd:
    """Raises when it is looked at."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # that is what is odd
        raise RuntimeError("no")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_looked_at_stops_no_search() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with unguarded_guard(holding([Odd(), nested, jagged])) as found:
        assert "step_fn.thing[0] (an object of type Odd; inspecting it raised RuntimeError)" in found.caveats[0]
        assert "step_fn.thing[1] (a tensor without storage of its own)" in found.caveats[0]
        jagged.values().add_(1)
    assert jagged.values().tolist() == [1.0] * 5


class Terabyte(list[Any]):
    """A list that has to be read past its own methods."""

    def __iter__(self) -> Any:
        raise RuntimeError("reads a terabyte")

    __len__ = __iter__


class Unsure:
    """Raises when it is asked for its class."""

    @property  # type: ignore[misc]  # that is what is odd
    def __class__(self) -> Any:
        raise KeyError


class Pipe(io.RawIOBase):
    """A file that does not say where it is."""

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        raise AttributeError("tell")


class Refusing:
    """An extra whose state cannot be read."""

    def state_dict(self) -> Any:
        raise NotImplementedError


def test_what_raises_when_it_is_read_stops_no_search() -> None:
    kept, lost = Unsure(), Unsure()
    thing = [weakref.proxy(kept), weakref.proxy(lost), Terabyte([1, []]), Unsure(), Pipe()]
    del lost
    with unguarded_guard(holding(thing), extras={"extra": Refusing()}) as found:
        (caveat,) = found.caveats
        for name in ("step_fn.thing[3] (", "step_fn.thing[4] (an open file)", "extra.state_dict() (reading it raised"):
            assert name in caveat
        assert caveat.count(" (") == 3
        list.append(thing[2], 3)
        list.__getitem__(thing[2], 1).append(4)
    assert [list.__getitem__(thing[2], index) for index in (-2, -1)] == [1, []]
    assert digest_in(unguarded_guard(holding(thing)))


@pytest.mark.filterwarnings("ignore")
def test_models_of_other_kinds_have_no_caveats() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    compiled = torch.compile(plain, backend="eager")
    compiled(torch.ones(1, 2))
    torch.compiler.reset()  # what dynamo keeps, fake tensors among it, would be found by other tests
    traced = torch.jit.trace(plain, torch.ones(1, 2))  # type: ignore[no-untyped-call]  # torch has no types here
    models: list[Any] = [torch.jit.script(plain), traced, compiled, nn.DataParallel(plain)]
    for model in models:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with Guard(model) as found:
            assert found.caveats == ()
            for parameter in model.parameters():
                parameter.data.add_(1)
        assert all(torch.equal(now, kept) for now, kept in zip(model.parameters(), before, strict=True))


def library_guard(step: Any, **more: Any) -> Guard:
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
    with library_guard(step) as found:
        assert found.caveats == ()
    assert list(found.changed) == []
    with found:
        step(nn.Linear(1, 1), None)
    assert found.changed == ("step_fn.seed", "tests.guard.test_unguarded.mask_of")


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
