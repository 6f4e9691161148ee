"""Optional libraries: what is said where one is missing or broken, and the silence while it is imported."""

import logging
import warnings
from unittest.mock import patch

import pytest

from autofit.strategies.optional_libraries import missing, quietly, unusable


def test_a_missing_or_broken_library_says_what_to_install() -> None:
    with patch("importlib.util.find_spec", lambda name: None):
        assert missing("torchao") == "torchao is not installed: pip install '.[torchao]' in a checkout of autofit"
    with patch("importlib.util.find_spec", lambda name: object()):
        assert missing("torchao") is None
    assert "no symbol" in unusable("torchao", ImportError("no symbol"))
    assert ".[torchao]" in unusable("torchao", ImportError("no symbol"))


def test_notes_and_warnings_are_hidden_only_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    logger, before = logging.getLogger("torchao"), logging.root.manager.disable
    with warnings.catch_warnings(record=True) as shown, quietly():
        logger.warning("hidden")
        warnings.warn("hidden", stacklevel=1)
    assert shown == []
    with pytest.raises(ImportError), quietly():
        raise ImportError
    assert logging.root.manager.disable == before
    logger.warning("shown")
    assert [record.message for record in caplog.records] == ["shown"]
