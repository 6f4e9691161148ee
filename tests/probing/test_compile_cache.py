"""The compile cache of one search is empty, its own, and gone afterwards."""

import os
from pathlib import Path

import pytest

from autofit.probing.compile_cache import VARIABLE, new_cache, private_cache


@pytest.mark.parametrize("before", [None, "/somewhere/else"])
def test_the_cache_is_empty_and_the_variable_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with private_cache():
        folder = Path(os.environ[VARIABLE])
        assert list(folder.iterdir()) == []
        (folder / "code").write_text("kernel")
    assert not folder.exists()
    assert os.environ.get(VARIABLE) == before


def test_each_search_has_its_own() -> None:
    with new_cache() as one, new_cache() as other:
        assert one != other


def test_an_error_inside_puts_the_variable_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(KeyError), private_cache():
        raise KeyError
    assert VARIABLE not in os.environ
