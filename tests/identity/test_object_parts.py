"""What an object holds, read without asking it."""

import functools
from dataclasses import dataclass
from types import CellType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autofit.identity.object_parts import (
    attributes_of,
    cell_content,
    codes_of,
    is_configuration,
    is_drawn_positions,
    is_hash,
    is_part_of_class,
    wrapped_function,
)


class Slotted:
    __slots__ = ("__private", "shown")

    def __init__(self) -> None:
        self.shown, self.__private = 1, 2


class Refusing(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.extra = 3

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not ask")


@dataclass
class Settings:
    rate: float = 0.1


class NetConfig:
    def to_dict(self) -> dict[str, Any]:
        return {}


def test_slots_private_ones_too_and_attributes_are_read() -> None:
    assert attributes_of(Slotted()) == {"shown": 1, "__private": 2}
    assert attributes_of(Refusing()) == {"extra": 3, "shown": 1, "__private": 2}


def test_of_a_class_its_own_names_count_and_special_ones_only_if_they_are_code() -> None:
    assert is_part_of_class("rate", 1)
    assert is_part_of_class("__call__", lambda self: None)
    assert not is_part_of_class("__doc__", "text")
    assert not is_part_of_class("__special__", 1)


def test_code_is_found_inside_pythons_own_decorators() -> None:
    def plain(self: object) -> None: ...

    cached: Any = functools.cached_property(plain)
    values: list[Any] = [plain, property(plain), staticmethod(plain), classmethod(plain), cached]
    for value in values:
        assert codes_of(value) == [plain.__code__]
    assert codes_of(print) == []


@pytest.mark.parametrize("value", [Settings(), SimpleNamespace(a=1), NetConfig()])
def test_records_of_settings_are_configurations(value: object) -> None:
    assert is_configuration(value)


@pytest.mark.parametrize("value", [Slotted(), 3, [1]])
def test_other_objects_are_none(value: object) -> None:
    assert not is_configuration(value)


def test_positions_are_whole_numbers() -> None:
    assert is_drawn_positions([3, 1, 2])
    assert is_drawn_positions(range(4))
    assert not is_drawn_positions([0.5])
    assert not is_drawn_positions("abc")


def test_a_function_is_found_in_wrappers_that_are_known() -> None:
    assert wrapped_function(functools.lru_cache(len)) is len
    assert wrapped_function(np.vectorize(abs)) is abs
    assert wrapped_function(object()) is None


def test_a_cell_may_be_empty() -> None:
    assert cell_content(CellType(7)) == 7
    assert cell_content(CellType()) is None


def test_a_number_in_an_attribute_named_hash_is_taken_as_the_result_of_hash() -> None:
    assert is_hash("_original_object_hash", hash("a"))
    assert is_hash("hash_", 3)
    assert not is_hash("config_hash", "5f3a")  # a digest as a text is the same in every process
    assert not is_hash("hash_buckets", 64)
