"""Batches of every structure that a loader may give."""

from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Record:
    x: torch.Tensor
    name: str = "r"


@dataclass(frozen=True, slots=True)
class Frozen:
    x: torch.Tensor
    extra: dict[str, torch.Tensor] = field(default_factory=dict)


class Encoding(UserDict[str, Any]):
    """As transformers.BatchEncoding: a UserDict with further state, attribute access and `.to()`."""

    def __init__(self, data: dict[str, Any], encodings: Any = None) -> None:
        super().__init__(data)
        self.encodings = encodings

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["data"][name]
        except KeyError as error:
            raise AttributeError(name) from error

    def to(self, device: Any) -> "Encoding":
        return self


class Graph:
    """As a graph library's data: attributes and `.to()`."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.note = x, "n"

    def to(self, device: Any) -> "Graph":
        return self


class Attributes(dict[str, Any]):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.__dict__ = self


class ReadOnly(Mapping[str, Any]):
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = dict(data)

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)


def rows(count: int = 4, width: int = 3) -> torch.Tensor:
    return torch.arange(count * width, dtype=torch.float32).reshape(count, width)


STRUCTURES = {
    "tensor": rows(),
    "tuple": (rows(), torch.arange(4)),
    "list": [rows(), torch.arange(4)],
    "namedtuple": Pair(rows(), torch.arange(4)),
    "dict": {"x": rows(), "n": "text", "none": None, "k": 3},
    "ordered": OrderedDict(x=rows()),
    "defaultdict": defaultdict[str, Any](list, x=rows()),
    "nested": {"in": {"a": rows(), "b": [rows(4, 1), (rows(4, 2),)]}, "y": torch.arange(4)},
    "dataclass": Record(rows()),
    "frozen": Frozen(rows(), {"m": rows(4, 1)}),
    "encoding": Encoding({"x": rows(), "y": torch.arange(4)}, encodings="kept"),
    "object": Graph(rows()),
    "readonly": ReadOnly({"x": rows()}),
    "proxy": MappingProxyType({"x": rows()}),
}
